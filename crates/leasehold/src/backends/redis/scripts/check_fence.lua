-- check_fence: raises the mark of a resource, and gives the highest fence that it has seen.
--
-- KEYS  1 the mark: the highest fence, as 15 digits. It never expires
-- ARGV  1 the fence

local given = tonumber(ARGV[1])
local mark = redis.call('GET', KEYS[1]) or '0'
local highest = string.find(mark, '^%d+$') and #mark <= 15 and tonumber(mark)
if not highest then
  return redis.error_reply('FOREIGN the key of the mark holds something that leasehold did not write')
end
if given > highest then
  highest = given
  redis.call('SET', KEYS[1], string.format('%015.0f', given))
end
return highest
