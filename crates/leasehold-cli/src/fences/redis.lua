-- Fences for Redis 6.2 or newer: checks a fence and runs one write, in one step.
-- Printed by `leasehold fences redis`.
--
--     redis-cli EVAL "$(leasehold fences redis)" 2 '{report}' '{report}:fence' 459475822995008 SET 'new content'
--
-- KEYS  1 the key to write
--       2 the key of its mark: the highest fence that it has seen, as 15 digits
-- ARGV  1 the fence, a number or 15 digits
--       2 the command; the first key comes right after it
--       3 … the rest of the command
--
-- Gives the command's answer, or the error STALE_FENCE for a fence below the mark; then nothing was written. An equal
-- fence passes: the same holder writes again. Only exclusive holders may call it: readers and permit holders are inside
-- together, and would refuse each other.
--
-- In a cluster both keys must be in one slot, hence the braces. The mark must not expire or be evicted
-- (maxmemory-policy noeviction), and must be as durable as what it protects. All writers must use this script.

local text, mark = ARGV[1], redis.call('GET', KEYS[2]) or '0'
local function number(digits)
  return string.find(digits, '^%d+$') and #digits <= 15 and tonumber(digits)
end
local given, highest = number(text or ''), number(mark)
if not highest then
  return redis.error_reply('NO_FENCE the key of the mark, ' .. KEYS[2] .. ', holds no fence')
elseif not given or given < 1 or given > 900000000000000 then
  return redis.error_reply('NO_FENCE no valid fence for resource ' .. KEYS[1])
elseif given < highest then
  return redis.error_reply(string.format('STALE_FENCE stale fence %015.0f for resource %s: the highest seen is %015.0f',
    given, KEYS[1], highest))
end
redis.call('SET', KEYS[2], string.format('%015.0f', given))
return redis.call(ARGV[2], KEYS[1], unpack(ARGV, 3))
