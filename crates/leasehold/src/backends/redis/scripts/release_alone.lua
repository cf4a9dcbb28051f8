-- The short ways of release: for a mutex with nothing expired, no waiter or a front that will be the next holder, and
-- an id that need not be refused afterwards. The long way gives the same answer.

if alone == id and not ARGV[3] then
  local held_by, marks, _
  if plain then
    local ttl, since
    held_by, ttl, since, _, marks = unpacked(FRESH, head, rest + 22)
    due = since + ttl
  else
    _, _, held_by, _, _, _, _, _, _, marks = unpacked(LEASE, head, rest + 22)
  end
  local next_row, next_id
  if waiting > 0 then
    next_id = call('ZRANGE', KEYS[4], 0, 0)[1]
    next_row = call('HGET', KEYS[2], next_id)
  end
  if due > now and (marks == '' or marks == 'v') and (ARGV[2] == '' or ARGV[2] + 0 == held_by)
    and (waiting == 0 or sub(next_row or '', 1, 3) == 'Tx\0') then
    -- Works when memory is full too: first free some memory, and Redis then lets the rest pass.
    if finder then call('DEL', finder) else call('PEXPIREAT', name, keep) end
    if waiting > 0 then
      local letter, mode, ttl, lapses, joined, nonce, marks, at = unpacked('>c1sdddss', next_row)
      if sub(marks, -1) ~= 'w' then
        -- Appended as its last mark.
        call('HSET', KEYS[2], next_id, sub(next_row, 1, at - 2) .. 'w' .. sub(next_row, at - 1))
        local channel, number = unpacked('ss', next_row, at)
        call('PUBLISH', channel, number)
      end
    elseif spents == 0 then
      call('SET', name, pack(PLAIN, PLAIN_MARK, fence, version + 1, keep), 'KEEPTTL')
      return now
    end
    call('SET', name, pack(HEAD, MARK, fence, version + 1, keep, due, 0, waiting, spents, arrivals, kind), 'KEEPTTL')
    return now
  end
end

