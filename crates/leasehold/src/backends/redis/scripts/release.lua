-- release: ends a lease, or gives up a place in the queue.
--
-- ARGV  2 fence or '', 3 owner ('' or '=' and the owner), 4 the ttl of the unanswered attempt, or '', 5 nonce or ''
-- gives 1 done · 3 gone: why; last of all the time

local wanted_fence, wanted_owner = ARGV[2], ARGV[3]
local unanswered, nonce = tonumber(ARGV[4]), ARGV[5]

settle()

local function act()
  local over
  if lease then
    over = read_lease(lease)
    if nonce ~= '' and nonce ~= over.nonce then return { 3, 'superseded', now } end
    if wanted_fence ~= '' and wanted_fence ~= string.format('%.0f', over.fence) then
      return { 3, 'not_found', now }
    end
    if wanted_owner ~= '' and not owned_by(wanted_owner) then return { 3, 'not_found', now } end
    drops[#drops + 1] = 'l:' .. id
    if alone == id then
      alone = false
    else
      redis.call('ZREM', leases, id)
      held = held - 1
    end
    version = version + 1
  elseif ticket then
    over = read_ticket(ticket)
    if nonce ~= '' and nonce ~= over.nonce then return { 3, 'superseded', now } end
    if wanted_fence ~= '' or (wanted_owner ~= '' and not owned_by(wanted_owner)) then
      return { 3, 'not_found', now }
    end
    redis.call('ZREM', queue, id)
    redis.call('ZREM', places, id)
    drops[#drops + 1] = 't:' .. id
    waiting = waiting - 1
  else
    local reason = why_gone()
    if unanswered then spend(id, unanswered, 'not_found') end
    return { 3, reason, now }
  end
  drops[#drops + 1] = 'o:' .. id
  forget()
  if over.repeated or unanswered then
    spend(id, math.max(over.ttl, unanswered or 0), 'not_found')
  end
  return { 1, now }
end

local answer = act()
finish()
return answer
