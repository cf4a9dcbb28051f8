-- The end of every verb: wakes the waiters that are let in and were not woken yet, by number and never by id, and
-- writes what has changed.

local SPENT_FOR = 60000000         -- promise 8, microseconds
local WAKE_LIMIT = 128             -- tickets walked at most

if own_set then sets[1], sets[2] = id, own_set end
if note_set then sets[#sets + 1], sets[#sets + 2] = 'note', note_set end
if waiting > 0 and not alone then
  local _, _, _, ids, tickets =
    walk(math.min(waiting, WAKE_LIMIT), false, held, kind, id, own_set, admits, read_ticket)
  for i, t in ipairs(tickets) do
    if not t.woken then
      t.woken = true
      sets[#sets + 1] = ids[i]
      sets[#sets + 1] = write_ticket(t)
      call('PUBLISH', t.channel, t.number)
    end
  end
end

local spent_born = spents == 0
for _, one in ipairs(to_spend) do
  local ends = now + math.max(one[2], SPENT_FOR)
  local before = spents > 0 and tonumber(call('ZSCORE', spent, one[1]) or 0) or 0
  if before == 0 then
    spents = spents + 1
    sets[#sets + 1] = one[1]
    sets[#sets + 1] = 'S' .. one[3]
  elseif before > ends then
    ends = before
  end
  call('ZADD', spent, ends, one[1])
  due, ends_at = math.min(due, ends), math.max(ends_at, ends)
end

if expired > 0 and version == version_before then version = version + 1 end
if own_drop then call('HDEL', rows, id) end
local text = pack(HEAD, MARK, fence, version, keep, due, held, waiting, spents, arrivals, kind) .. tail
if #sets == 0 and (text == head_before or not head and version == 0) then return answer end

local need = math.max(fence / 256, now / 1000, ends_at / 1000)
local late = keep < need + RETENTION
if late then
  keep = need - need % 1 + RETENTION + SLACK
  call('SET', name, pack(HEAD, MARK, fence, version, keep, due, held, waiting, spents, arrivals, kind) .. tail,
    'PXAT', keep)
elseif text ~= head_before then
  call('SET', name, text, 'KEEPTTL')
end
for from = 1, #sets, 2 * BATCH do
  call('HSET', rows, unpack(sets, from, math.min(from + 2 * BATCH - 1, #sets)))
end
if late then
  for i = 2, 7 do call('PEXPIREAT', KEYS[i], keep) end
else
  if #sets > 0 and (rows_born or own_drop) then call('PEXPIREAT', rows, keep) end
  if leases_born and held > 0 then
    call('PEXPIREAT', leases, keep)
    call('PEXPIREAT', grants, keep)
  end
  if queue_born and waiting > 0 then
    call('PEXPIREAT', queue, keep)
    call('PEXPIREAT', places, keep)
  end
  if spent_born and spents > 0 then call('PEXPIREAT', spent, keep) end
end
-- The caller learns how many expired leases its call found. There is always something to write then.
if expired > 0 then return { 'expired', expired, answer } end
return answer
