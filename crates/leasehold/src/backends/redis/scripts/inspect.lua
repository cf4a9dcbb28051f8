-- inspect: what there is to see of a name, live leases and tickets only. Changes nothing.
--
-- KEYS  as in name.lua, 1 to 4
-- ARGV  1 an id, or ''
-- gives the time, the fence, the version, the leases (id, lease, label, …), the first tickets likewise, how many wait,
--       and 1 if that id has a lease or a place

local name, leases, queue, places = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local SHOWN, BATCH = 100, 500

local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000000 + tonumber(time[2])
local after_now = string.format('(%.0f', now)

local kept = redis.call('HMGET', name, 'fence', 'version', 'alone')
if not tonumber(kept[1]) then
  if redis.call('EXISTS', name) == 1 then
    return redis.error_reply('FOREIGN the key of the name holds something that leasehold did not write')
  end
  return { now, 0, 0, {}, {}, 0, 0 }
end

-- Adds id, text and label of each, while fewer than `most` are there.
local function show(rows, ids, prefix, most)
  for _, id in ipairs(ids) do
    if #rows >= 3 * most then return end
    local seen = redis.call('HMGET', name, prefix .. id, 'o:' .. id)
    rows[#rows + 1] = id
    rows[#rows + 1] = seen[1] or ''
    rows[#rows + 1] = seen[2] or ''
  end
end

local holders = {}
if kept[3] then
  local ends = string.match(redis.call('HGET', name, 'l:' .. kept[3]) or '', '^%S+ %d+ %d+ %d+ (%d+) ')
  if ends and tonumber(ends) > now then show(holders, { kept[3] }, 'l:', 1) end
end
show(holders, redis.call('ZRANGEBYSCORE', leases, after_now, '+inf'), 'l:', math.huge)

local waiters = {}
local from = 0
while #waiters < 3 * SHOWN do
  local ids = redis.call('ZRANGE', queue, from, from + BATCH - 1)
  if #ids == 0 then break end
  local live = {}
  for _, id in ipairs(ids) do
    if tonumber(redis.call('ZSCORE', places, id) or 0) > now then live[#live + 1] = id end
  end
  show(waiters, live, 't:', SHOWN)
  from = from + BATCH
end

local known = tonumber(redis.call('ZSCORE', places, ARGV[1]) or 0) > now
for i = 1, #holders, 3 do known = known or holders[i] == ARGV[1] end

return { now, tonumber(kept[1]), tonumber(kept[2]) or 0, holders, waiters,
  redis.call('ZCOUNT', places, after_now, '+inf'), known and 1 or 0 }
