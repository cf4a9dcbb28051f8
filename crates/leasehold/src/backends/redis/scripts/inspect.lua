-- inspect: what there is to see of a name, live leases and tickets only. Changes nothing.
--
-- KEYS  as in head.lua
-- ARGV  1 an id, or ''
-- gives the time, the fence, the version, the leases (id, row, …), the first tickets likewise, how many wait, and 1 if
--       that id has a lease or a place

local call, sub = redis.call, string.sub
local name, rows, leases, queue, places = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local SHOWN, BATCH = 100, 500

local time = call('TIME')
local now = time[1] * 1000000 + time[2]
local after_now = string.format('(%.0f', now)

local head = call('GET', name)
if not head then return { now, 0, 0, {}, {}, 0, 0 } end
local mark, fence, version, keep, due, held, waiting, spents, arrivals, kind, rest
local plain = sub(head, 1, 4) == 'LH0:' and #head >= 28
if plain then
  mark, fence, version, keep, rest = struct.unpack('>c4ddd', head)
  held, waiting = 0, 0
elseif sub(head, 1, 4) == 'LH1:' and #head >= 69 then
  mark, fence, version, keep, due, held, waiting, spents, arrivals, kind, rest = struct.unpack('>c4dddddddds', head)
else
  return redis.error_reply('FOREIGN the key of the name holds something that leasehold did not write')
end

-- Adds id and row of each, while fewer than `most` are there.
local function show(shown, ids, most)
  for _, id in ipairs(ids) do
    if #shown >= 2 * most then return end
    shown[#shown + 1] = id
    shown[#shown + 1] = call('HGET', rows, id) or ''
  end
end

local holders = {}
if rest <= #head then
  local row = sub(head, rest + 22)
  if plain then
    local of, ttl, since, nonce, marks, label = struct.unpack('>dddss', row)
    row = struct.pack('>c1sddddddss', 'L', 'x', of, of, ttl, since + ttl, since, 0, nonce, marks) .. sub(row, label)
  end
  local letter, mode, of, granted, ttl, ends = struct.unpack('>c1sdddd', row)
  if ends > now then holders = { sub(head, rest, rest + 21), row } end
end
if held > 0 then show(holders, call('ZRANGEBYSCORE', leases, after_now, '+inf'), math.huge) end

local waiters = {}
local from = 0
while waiting > 0 and #waiters < 2 * SHOWN do
  local ids = call('ZRANGE', queue, from, from + BATCH - 1)
  if #ids == 0 then break end
  local live = {}
  for _, id in ipairs(ids) do
    if tonumber(call('ZSCORE', places, id) or 0) > now then live[#live + 1] = id end
  end
  show(waiters, live, SHOWN)
  from = from + BATCH
end

local known = waiting > 0 and tonumber(call('ZSCORE', places, ARGV[1]) or 0) > now
for i = 1, #holders, 2 do known = known or holders[i] == ARGV[1] end

return { now, fence, version, holders, waiters,
  waiting > 0 and call('ZCOUNT', places, after_now, '+inf') or 0, known and 1 or 0 }
