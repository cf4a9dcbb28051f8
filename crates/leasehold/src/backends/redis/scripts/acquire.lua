-- try_acquire: one attempt, which may join the queue or refresh its place there.
--
-- ARGV  2 mode (x, s, p<limit>), 3 ttl, 4 owner and metadata, 5 ticket ttl or '', 6 repeat, 7 nonce, 8 first,
--       9 the channel of the client, 10 the wake number of the claim there
-- gives 1 granted: fence, mode, left, renewals, granted at · 2 busy: retry in (-1: unknown), place (-1: none),
--       queue length, left of the holder (-1: none), its owner · 3 gone · 4 mismatch: the kind in use ·
--       5 waits for another mode · 6 the fence is at its limit; last of all the time

local FRONT_LOOK, LAPSE_LOOK = 1000000, 250000   -- as in state.rs
local mode, ttl, label, patience = ARGV[2], tonumber(ARGV[3]), ARGV[4], tonumber(ARGV[5])
local repeated, nonce, first = ARGV[6] == '1', ARGV[7], ARGV[8] == '1'

settle()

local function act()
  if why then return { 3, now } end
  local own_kind = (mode == 'x' or mode == 's') and 'rw' or mode
  if (alone or held > 0 or waiting > 0) and kind ~= own_kind then return { 4, kind, now } end

  if lease then
    local l = read_lease(lease)
    if not first and l.nonce ~= nonce then return { 3, now } end
    if l.nonce ~= nonce or (repeated and not l.repeated) then
      l.nonce, l.repeated = nonce, l.repeated or repeated
      set('l:' .. id, write_lease(l))
    end
    return shown(1, l)
  end

  local t = ticket and read_ticket(ticket)
  if t then
    if not first and t.nonce ~= nonce then return { 3, now } end
    if t.mode ~= mode then return { 5, now } end
  end

  local place = t and redis.call('ZRANK', queue, id)
  local enters
  if waiting == 0 or place == 0 then
    enters = admits(mode, alone, total())
  elseif t or patience then
    local before = place or waiting
    if before < WAKE_LIMIT then
      local exclusive, count, all = walk(before)
      enters = all and admits(mode, exclusive, count)
    end
  end

  if enters then
    local granted = math.max(fence + 1, sec * 256000 + math.floor(usec * 32 / 125))
    if granted > MAX_FENCE then return { 6, now } end
    -- The mode that is in use is known only by those who are there.
    kind = own_kind
    local l = { mode = mode, fence = granted, granted = string.format('%.0f', granted), ttl = ttl,
      expires = now + ttl, since = string.format('%.0f', now), renewals = 0, nonce = nonce,
      repeated = repeated or (t and t.repeated), revoked = false }
    if mode == 'x' then
      remember(l.expires)
      alone = id
    else
      add(leases, l.expires, id)
      remember(l.expires)
      held = held + 1
    end
    if t then
      redis.call('ZREM', queue, id)
      redis.call('ZREM', places, id)
      drops[#drops + 1] = 't:' .. id
      waiting = waiting - 1
    end
    set('l:' .. id, write_lease(l))
    set('o:' .. id, label)
    fence = granted
    version = version + 1
    ends_at(l.expires)
    return shown(1, l)
  end

  if patience then
    local lapses = now + patience
    add(places, lapses, id)
    if not t then
      kind = own_kind
      arrivals = arrivals + 1
      place = waiting
      waiting = waiting + 1
      add(queue, arrivals, id)
      t = { mode = mode, ttl = ttl, joined = string.format('%.0f', now) }
      set('o:' .. id, label)
    end
    t.lapses, t.channel, t.number = lapses, ARGV[9], ARGV[10]
    remember(lapses)
    ends_at(lapses)
  end
  if t then
    t.nonce, t.repeated = nonce, t.repeated or repeated
    ticket = write_ticket(t)
    set('t:' .. id, ticket)
  end

  -- Blocked permits wait for the first to go, others for the last.
  local holder = alone
  if not holder and held > 0 then
    local at = own_kind == 'rw' and -1 or 0
    holder = redis.call('ZRANGE', leases, at, at)[1]
  end
  local left, shortest, owner = -1, NEVER, ''
  if holder then
    local seen = redis.call('HMGET', name, 'l:' .. holder, 'o:' .. holder)
    local l = read_lease(seen[1])
    left, shortest, owner = l.expires - now, math.min(l.ttl, ttl), seen[2] or ''
  end
  local look
  if holder and (not place or place == 0) then
    look = left
  else
    local lapse = waiting > 0 and first_score(places) - now or NEVER
    look = math.min(math.max(lapse, LAPSE_LOOK), math.max(shortest, FRONT_LOOK))
  end
  if patience then look = math.min(look, math.floor(patience / 3)) end
  return { 2, look == NEVER and -1 or look, place or -1, waiting, left, owner, now }
end

local answer = act()
finish()
return answer
