-- What every verb begins with: the time, and the name as it is kept.
-- docs/redis.md describes the keys, docs/contract.md the rules; the words are the same.
--
-- KEYS  1 the name (hash), 2 its shared leases and permits by expiry, 3 its queue by arrival, 4 its places by
--       lapse, 5 its spent ids by end (sorted sets); 6 where this id is (string), not in a cluster
-- ARGV  1 the lease id this verb is about, or ''; the rest is the verb's
--
-- Numbers stay below 2^53 and go into texts by '%.0f' only: '..' would write 1e+15.

local name, leases, queue, places, spent, finder = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local id = ARGV[1]

local RETENTION = 604800000        -- a counter is kept this long after its fence's time, milliseconds
local MAX_FENCE = 900000000000000
local NEVER = math.huge

local time = redis.call('TIME')
local sec, usec = tonumber(time[1]), tonumber(time[2])
local now = sec * 1000000 + usec

local kept = redis.call('HMGET', name, 'fence', 'version', 'keep', 'due', 'kind', 'held', 'waiting', 'alone',
  'arrivals', 'l:' .. id, 't:' .. id, 's:' .. id)
local fence = tonumber(kept[1])
local fresh = not fence
if fresh then
  -- A name of ours always has its fence, and its other keys live no longer than that.
  if redis.call('EXISTS', name, leases, queue, places, spent) > 0 then
    return redis.error_reply('FOREIGN the keys of the name hold something that leasehold did not write')
  end
  fence = 0
end
local version = tonumber(kept[2]) or 0
local keep = tonumber(kept[3]) or 0
local due = tonumber(kept[4]) or NEVER        -- nothing ends before this; may be too early, never too late
local kind = kept[5]                          -- 'rw' or 'p<limit>'; means something while the name is in use
local held = tonumber(kept[6]) or 0           -- shared leases and permits
local waiting = tonumber(kept[7]) or 0        -- tickets
local alone = kept[8]                         -- the id of the exclusive lease
local arrivals = tonumber(kept[9]) or 0
local lease, ticket, why = kept[10], kept[11], kept[12]   -- what is kept of this id
