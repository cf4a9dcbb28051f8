-- revoke: refuses all renewals of the name's leases, or ends them at once.
--
-- ARGV  2 '1' to end them at once
-- gives how many leases, and the time

local at_once = ARGV[2] == '1'

settle()

local ids = redis.call('ZRANGE', leases, 0, -1)
if alone then ids[#ids + 1] = alone end
for from = 1, #ids, BATCH do
  local some = { unpack(ids, from, math.min(from + BATCH - 1, #ids)) }
  for i, text in ipairs(texts(some, 'l:')) do
    local l = read_lease(text)
    if at_once then
      spend(some[i], l.ttl, 'revoked')
    else
      l.revoked = true
      set('l:' .. some[i], write_lease(l))
    end
  end
  if at_once then redis.call('HDEL', name, unpack(fields(some, 'l:', 'o:'))) end
end
if #ids > 0 then
  version = version + 1
  if at_once then
    redis.call('DEL', leases)
    alone, held = false, 0
  end
end
finish()
return { #ids, now }
