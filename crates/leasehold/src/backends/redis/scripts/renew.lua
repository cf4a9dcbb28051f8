-- renew: one lease of a batch.
--
-- ARGV  2 ttl, 3 fence or '', 4 owner ('' or '=' and the owner), 5 shorten: the renewals so far, or '',
--       6 mode or '', 7 the fence to raise to, or ''
-- gives 1 held: fence, mode, left, renewals, granted at · 3 gone: why · 4 the mode cannot be changed so ·
--       5 the fence cannot be raised so far; last of all the time

local ttl, wanted_fence, wanted_owner, shorten = tonumber(ARGV[2]), ARGV[3], ARGV[4], ARGV[5]
local mode, raised = ARGV[6], tonumber(ARGV[7])

settle()

local function act()
  if not lease then return { 3, why_gone(), now } end
  local l = read_lease(lease)
  if wanted_fence ~= '' and wanted_fence ~= string.format('%.0f', l.fence) then return { 3, 'not_found', now } end
  if wanted_owner ~= '' and not owned_by(wanted_owner) then return { 3, 'not_found', now } end
  if l.revoked then return { 3, 'revoked', now } end
  if raised then
    if raised > MAX_FENCE then return { 5, now } end
    if raised < l.fence then return { 3, 'superseded', now } end
  end
  if mode ~= '' and mode ~= l.mode and not (l.mode == 'x' and mode == 's') then return { 4, now } end
  if shorten ~= '' and shorten ~= string.format('%.0f', l.renewals) then return shown(1, l) end

  if raised then
    l.fence = raised
    fence = math.max(fence, raised)
  end
  local asked = now + ttl
  l.expires = shorten ~= '' and asked or math.max(asked, l.expires)
  l.ttl = math.max(l.ttl, ttl)
  l.renewals = l.renewals + 1
  -- Setting an expiry is allowed when memory is full, and Redis then lets the rest of the script pass too: a full
  -- store must not lose the leases it has.
  if finder then
    redis.call('PEXPIREAT', finder, math.ceil(l.expires / 1000))
  else
    redis.call('PEXPIREAT', name, keep)
  end
  if mode == 's' and l.mode == 'x' then
    l.mode = 's'
    alone = false
    held = held + 1
    add(leases, l.expires, id)
  elseif l.mode ~= 'x' then
    redis.call('ZADD', leases, 'XX', l.expires, id)
  end
  set('l:' .. id, write_lease(l))
  version = version + 1
  ends_at(l.expires)
  return shown(1, l)
end

local answer = act()
finish()
return answer
