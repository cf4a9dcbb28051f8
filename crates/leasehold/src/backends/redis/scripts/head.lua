-- The beginning of every verb: reads the time and the head of the name. docs/redis.md describes the keys,
-- docs/contract.md the rules, in the same words.
--
-- KEYS  1 the name's head (string), 2 its rows by id (hash), 3 its shared leases and permits by expiry, 4 its queue by
--       arrival, 5 its places by lapse, 6 its spent ids by end, 7 its shared leases and permits by grant (sorted sets);
--       8 where this id is (string), not in a cluster
-- ARGV  1 the lease id this verb is about, or ''; the rest is the verb's. Each argument costs Redis as much as reading a
--       small key, so verbs that are called often pack theirs.
--
-- Numbers stay below 2^53 and are kept as doubles, which is exact, and many times faster than writing digits.

local call, pack, unpacked, sub = redis.call, struct.pack, struct.unpack, string.sub
local name, finder = KEYS[1], KEYS[8]
local id = ARGV[1]

local MARK, HEAD, HEAD_LEAST = 'LH1:', '>c4dddddddds', 69
-- The short head of a name that has at most a mutex that was never renewed: fence, version, keep; then its id and its
-- row.
local PLAIN_MARK, PLAIN, PLAIN_LEAST = 'LH0:', '>c4ddd', 28
local FRESH = '>dddss'             -- fence, ttl, granted at, nonce, marks; label
local LEASE = '>c1sddddddss'       -- L, mode, fence, granted fence, ttl, expires, granted at, renewals, nonce, marks; label
local ALONE = '>c4ddddddddsc22c1sddddddss'   -- the head, the id of the exclusive lease, and that
local RETENTION = 604800000        -- a counter is kept this long after its fence's time, milliseconds
local SLACK = 3600000              -- the name is kept up to this much longer, so that not every grant sets its expiry
local MAX_FENCE = 900000000000000
local DAY = 22118400000            -- of the clock, as fences count it
local NEVER = math.huge

local time = call('TIME')
local sec, usec = time[1] + 0, time[2] + 0
local now = sec * 1000000 + usec

local head = call('GET', name)
local fence, version, keep = 0, 0, 0
local due = NEVER                               -- nothing ends before this; may be too early, never too late
local held, waiting, spents = 0, 0, 0           -- shared leases and permits; tickets; spent ids
local arrivals, kind = 0, 'rw'                  -- 'rw' or 'p<limit>'; means something while the name is in use
local alone, rest = false, 0                    -- the id of the exclusive lease; where in the head it is
local plain = false
if head then
  local mark = sub(head, 1, 4)
  if mark == PLAIN_MARK and #head >= PLAIN_LEAST then
    plain = true
    mark, fence, version, keep, rest = unpacked(PLAIN, head)
  elseif mark == MARK and #head >= HEAD_LEAST then
    mark, fence, version, keep, due, held, waiting, spents, arrivals, kind, rest = unpacked(HEAD, head)
  elseif string.find(mark, '^LH[2-9]:') then
    return redis.error_reply('NEWER the key of the name was written by a newer leasehold')
  else
    return redis.error_reply('FOREIGN the key of the name holds something that leasehold did not write')
  end
  if rest <= #head then alone = sub(head, rest, rest + 21) end
elseif call('EXISTS', KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7]) > 0 then
  -- A name of ours always has its head, and its other keys live no longer than the head.
  return redis.error_reply('FOREIGN the keys of the name hold something that leasehold did not write')
end
