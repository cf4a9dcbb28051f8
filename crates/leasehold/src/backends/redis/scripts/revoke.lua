-- revoke: refuses all renewals of the name's leases, or ends them at once; or those of one fence only.
--
-- ARGV  2 '1' to end them at once, 3 the only fence that is meant, or ''
-- gives how many leases, and the time

local at_once, only = ARGV[2] == '1', tonumber(ARGV[3])
local count = 0

if alone then
  local l = read_lease(sub(tail, 23))
  if not only or l.fence == only then
    call('PEXPIREAT', name, keep)
    count = 1
    if at_once then
      to_spend[#to_spend + 1] = { alone, l.ttl, 'revoked' }
      alone, tail = false, ''
    else
      l.revoked = true
      tail = alone .. write_lease(l)
    end
  end
end
local ids = held > 0 and call('ZRANGE', leases, 0, -1) or {}
for from = 1, #ids, BATCH do
  local some, ended = { unpack(ids, from, math.min(from + BATCH - 1, #ids)) }, {}
  for i, row in ipairs(call('HMGET', rows, unpack(some))) do
    local l = read_lease(row)
    if not only or l.fence == only then
      count = count + 1
      if at_once then
        ended[#ended + 1] = some[i]
        to_spend[#to_spend + 1] = { some[i], l.ttl, 'revoked' }
      else
        l.revoked = true
        sets[#sets + 1] = some[i]
        sets[#sets + 1] = write_lease(l)
      end
    end
  end
  if #ended > 0 then
    call('ZREM', leases, unpack(ended))
    call('ZREM', grants, unpack(ended))
    held = held - #ended
  end
end
if count > 0 then version = version + 1 end
answer = { count, now }

