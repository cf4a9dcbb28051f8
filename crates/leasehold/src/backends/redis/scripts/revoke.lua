-- revoke: refuses all renewals of the name's leases, or ends them at once.
--
-- ARGV  2 '1' to end them at once
-- gives how many leases, and the time

local at_once = ARGV[2] == '1'
local count = held + (alone and 1 or 0)

if alone then
  call('PEXPIREAT', name, keep)
  local l = read_lease(sub(tail, 23))
  if at_once then
    to_spend[#to_spend + 1] = { alone, l.ttl, 'revoked' }
    alone, tail = false, ''
  else
    l.revoked = true
    tail = alone .. write_lease(l)
  end
end
local ids = held > 0 and call('ZRANGE', leases, 0, -1) or {}
for from = 1, #ids, BATCH do
  local some = { unpack(ids, from, math.min(from + BATCH - 1, #ids)) }
  for i, row in ipairs(call('HMGET', rows, unpack(some))) do
    local l = read_lease(row)
    if at_once then
      to_spend[#to_spend + 1] = { some[i], l.ttl, 'revoked' }
    else
      l.revoked = true
      sets[#sets + 1] = some[i]
      sets[#sets + 1] = write_lease(l)
    end
  end
end
if at_once and held > 0 then
  call('DEL', leases)
  held = 0
end
if count > 0 then version = version + 1 end
answer = { count, now }

