-- release: ends a lease, or gives up a place in the queue.
--
-- ARGV  2 fence or ''; if one of these is given, 3 owner ('' or '=' and the owner), 4 the ttl of the unanswered attempt,
--       or '', 5 nonce or '', 6 a note to write, as in renew.lua
-- gives the time: done · 3 gone: why; last of all the time

local wanted_fence, wanted_owner = ARGV[2], ARGV[3] or ''
local unanswered, nonce, note = tonumber(ARGV[4] or ''), ARGV[5] or '', ARGV[6]

repeat
  local over
  if lease then
    over = read_lease(lease)
    if nonce ~= '' and nonce ~= over.nonce then
      answer = { 3, 'superseded', now }
      break
    end
    if wanted_fence ~= '' and wanted_fence + 0 ~= over.fence
      or wanted_owner ~= '' and not owned_by(over.label, wanted_owner) then
      answer = { 3, 'not_found', now }
      break
    end
    if alone then
      if not finder then call('PEXPIREAT', name, keep) end   -- as in release_alone.lua
      alone, tail = false, ''
    else
      call('ZREM', leases, id)
      call('ZREM', grants, id)
      own_drop = true
      held = held - 1
    end
    if note then note_set = note_row(note, over.fence) end
    version = version + 1
  elseif ticket then
    over = read_ticket(ticket)
    if nonce ~= '' and nonce ~= over.nonce then
      answer = { 3, 'superseded', now }
      break
    end
    if wanted_fence ~= '' or wanted_owner ~= '' and not owned_by(over.label, wanted_owner) then
      answer = { 3, 'not_found', now }
      break
    end
    call('ZREM', queue, id)
    call('ZREM', places, id)
    own_drop = true
    waiting = waiting - 1
  else
    answer = { 3, why or has_expired and 'expired' or 'not_found', now }
    if unanswered then to_spend[#to_spend + 1] = { id, unanswered, 'not_found' } end
    break
  end
  if finder then call('DEL', finder) end
  if over.repeated or unanswered then
    to_spend[#to_spend + 1] = { id, math.max(over.ttl, unanswered or 0), 'not_found' }
  end
  answer = now
until true

