-- renew: one lease of a batch.
--
-- ARGV  2 ttl, 3 fence or '', 4 owner ('' or '=' and the owner), 5 shorten: the renewals so far, or '',
--       6 mode or '', 7 the fence to raise to, or ''; 8 if there is a note to write: its revision, packed, and its text
-- gives 1 held: fence, mode, left, renewals, granted at · 3 gone: why · 4 the mode cannot be changed so ·
--       5 the fence cannot be raised so far; last of all the time

local ttl, wanted_fence, wanted_owner, shorten = tonumber(ARGV[2]), ARGV[3], ARGV[4], ARGV[5]
local mode, raised, note = ARGV[6], tonumber(ARGV[7]), ARGV[8]

repeat
  if not lease then
    answer = { 3, why or has_expired and 'expired' or 'not_found', now }
    break
  end
  local l = read_lease(lease)
  if wanted_fence ~= '' and wanted_fence + 0 ~= l.fence
    or wanted_owner ~= '' and not owned_by(l.label, wanted_owner) then
    answer = { 3, 'not_found', now }
    break
  end
  if l.revoked then
    answer = { 3, 'revoked', now }
    break
  end
  local tomorrow = sec * 256000 + math.floor(usec * 32 / 125) + DAY
  if raised and raised > math.min(math.max(fence + 1, tomorrow), MAX_FENCE) then
    answer = { 5, now }
    break
  end
  if raised and raised < l.fence then
    answer = { 3, 'superseded', now }
    break
  end
  if mode ~= '' and mode ~= l.mode and not (l.mode == 'x' and mode == 's') then
    answer = { 4, now }
    break
  end
  if shorten == '' or shorten + 0 == l.renewals then
    if raised then
      l.fence = raised
      fence = math.max(fence, raised)
    end
    local asked = now + ttl
    l.ttl = math.max(l.ttl, ttl)
    -- A clock that was set back may have left an expiry that is later than any client asked for.
    l.expires = shorten ~= '' and asked or math.min(math.max(asked, l.expires), now + l.ttl)
    l.renewals = l.renewals + 1
    -- Setting an expiry is allowed when memory is full, and Redis then lets the rest of the script pass too: a full
    -- store must not lose its leases.
    if finder then
      call('PEXPIREAT', finder, math.ceil(l.expires / 1000))
    else
      call('PEXPIREAT', name, keep)
    end
    if mode == 's' and l.mode == 'x' then
      l.mode = 's'
      alone, tail = false, ''
      call('ZADD', leases, l.expires, id)
      call('ZADD', grants, l.granted, id)
      held = held + 1
    elseif l.mode ~= 'x' then
      call('ZADD', leases, 'XX', l.expires, id)
    end
    if alone then tail = id .. write_lease(l) else own_set = write_lease(l) end
    if note then note_set = note_row(note, l.fence) end
    version, ends_at = version + 1, l.expires
    if ends_at < due then due = ends_at end
  else
    call('PEXPIREAT', name, keep)   -- for WAIT, as a repeat in acquire.lua
  end
  answer = { 1, l.fence, l.mode, l.expires - now, l.renewals, l.since, now }
until true

