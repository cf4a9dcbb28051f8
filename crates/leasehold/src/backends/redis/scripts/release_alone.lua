-- The short way of release: a mutex that nobody waits for, of which nothing has ended, and whose id need not be refused
-- afterwards. The long way gives the same answer.

if alone == id and waiting == 0 and due > now and not ARGV[3] then
  local letter, mode, held_by, granted, ttl, ends, since, renewals, nonce, marks = unpacked(LEASE, tail, 23)
  if (marks == '' or marks == 'v') and (ARGV[2] == '' or ARGV[2] + 0 == held_by) then
    -- Also when memory is full: what frees some comes first, and Redis then lets the rest pass too.
    if finder then call('DEL', finder) else call('PEXPIREAT', name, keep) end
    if spents == 0 then due = NEVER end
    call('SET', name, pack(HEAD, MARK, fence, version + 1, keep, due, 0, 0, spents, arrivals, kind), 'KEEPTTL')
    return now
  end
end

