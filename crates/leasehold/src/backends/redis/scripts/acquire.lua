-- try_acquire: one attempt, which may join the queue or refresh its place there.
--
-- ARGV  2 packed: ttl, mode (x, s, p<limit>), flags (r repeat, f first), nonce, the ttl in milliseconds, rounded up; then
--       owner and metadata
--       3 packed, if it may wait: the ticket ttl, the same in milliseconds, the channel of the client, the wake number of
--       the claim there
-- gives the time: granted anew, with the fence of that time · 0 granted anew: fence · 1 granted: fence, mode, left,
--       renewals, granted at · 2 busy: retry in (-1: unknown), place (-1: none), queue length, left of the holder (-1:
--       none), its label · 3 gone · 4 mismatch: the kind in use · 5 waits for another mode · 6 the fence is at its limit;
--       last of all the time

local WALK_LIMIT = 128
local repeated, first = sub(flags, 1, 1) == 'r', sub(flags, -1) == 'f'
local patience, patience_millis, channel, number
if ARGV[3] then patience, patience_millis, channel, number = unpacked('>dsss', ARGV[3]) end

repeat
  if why then
    answer = { 3, now }
    break
  end
  local own_kind = (mode == 'x' or mode == 's') and 'rw' or mode
  if (alone or held > 0 or waiting > 0) and kind ~= own_kind then
    answer = { 4, kind, now }
    break
  end

  if lease then
    local l = read_lease(lease)
    if not first and l.nonce ~= nonce then
      answer = { 3, now }
      break
    end
    if l.nonce ~= nonce or (repeated and not l.repeated) then
      l.nonce, l.repeated = nonce, l.repeated or repeated
      if alone then tail = id .. write_lease(l) else own_set = write_lease(l) end
    end
    -- WAIT answers for what its own connection has written, and a repeat may come over a new one. So a repeat always
    -- writes; setting an expiry is allowed when memory is full.
    call('PEXPIREAT', name, keep)
    answer = { 1, l.fence, l.mode, l.expires - now, l.renewals, l.since, now }
    break
  end

  local t = ticket and read_ticket(ticket)
  if t and not first and t.nonce ~= nonce then
    answer = { 3, now }
    break
  end
  if t and t.mode ~= mode then
    answer = { 5, now }
    break
  end

  local place = t and call('ZRANK', queue, id)
  local enters
  if waiting == 0 or place == 0 then
    enters = admits(mode, alone, alone and 1 or held)
  elseif (t or patience) and not alone then
    local before = place or waiting
    if before < WALK_LIMIT then
      local exclusive, count, all = walk(before, false, held, kind, id, ticket, admits, read_ticket)
      enters = all and admits(mode, exclusive, count)
    end
  end

  if enters then
    local granted = math.max(fence + 1, sec * 256000 + math.floor(usec * 32 / 125))
    if granted > MAX_FENCE then
      answer = { 6, now }
      break
    end
    local ends = now + ttl
    if finder then call('SET', finder, name, 'PX', ttl_millis) end
    if t then
      call('ZREM', queue, id)
      call('ZREM', places, id)
      own_drop = true
      waiting = waiting - 1
    end
    local row = write_lease({ mode = mode, fence = granted, granted = granted, ttl = ttl, expires = ends, since = now,
      renewals = 0, nonce = nonce, repeated = repeated or (t and t.repeated), label = label })
    if mode == 'x' then
      alone, tail = id, id .. row
    else
      call('ZADD', leases, ends, id)
      call('ZADD', grants, granted, id)
      held = held + 1
      own_set = row
    end
    -- The kind in use is that of the leases that are there, so this grant sets it.
    fence, version, kind, ends_at = granted, version + 1, own_kind, ends
    if ends < due then due = ends end
    answer = { 0, granted, now }
    break
  end

  if patience then
    local lapses = now + patience
    if finder then call('SET', finder, name, 'PX', patience_millis) end
    call('ZADD', places, lapses, id)
    if not t then
      kind = own_kind
      arrivals = arrivals + 1
      place = waiting
      waiting = waiting + 1
      call('ZADD', queue, arrivals, id)
      t = { mode = mode, ttl = ttl, joined = now, label = label }
    end
    t.lapses, t.channel, t.number, ends_at = lapses, channel, number, lapses
    if lapses < due then due = lapses end
  end
  if t then
    t.nonce, t.repeated = nonce, t.repeated or repeated
    own_set = write_ticket(t)
  end

  -- A blocked permit waits for the first lease to end, other modes for the last.
  local holder = alone and sub(tail, 23)
  if not holder and held > 0 then
    local at = own_kind == 'rw' and -1 or 0
    holder = call('HGET', rows, call('ZRANGE', leases, at, at)[1])
  end
  local left, shortest, owner = -1, NEVER, ''
  if holder then
    local l = read_lease(holder)
    left, shortest, owner = l.expires - now, math.min(l.ttl, ttl), l.label
  end
  local look
  if holder and (not place or place == 0) then
    look = left
  else
    local lapse = waiting > 0 and first_score(places) - now or NEVER
    look = math.min(math.max(lapse, LAPSE_LOOK), math.max(shortest, FRONT_LOOK))
  end
  if patience then look = math.min(look, math.floor(patience / 3)) end
  answer = { 2, look == NEVER and -1 or look, place or -1, waiting, left, owner, now }
until true

