-- What the verbs share: how the name is settled, walked, and written back.

local SPENT_FOR = 60000000         -- promise 8, microseconds
local SLACK = 3600000              -- the name is kept up to this much longer, so that not every grant sets its expiry
local WAKE_LIMIT = 128             -- tickets walked at most
local BATCH = 500                  -- arguments of one call: Lua's stack has room for some thousands

local stored = { fence = fence, version = version, due = due, kind = kind, held = held, waiting = waiting,
  alone = alone, arrivals = arrivals }
local sets, drops = {}, {}   -- fields of the name, written at the end
local born = {}              -- sorted sets that may be new, and then have no expiry yet
local last_end = 0           -- the latest end that was written
local dropped = {}           -- ids whose leases settling dropped
local expired, lapsed = 0, 0

local function set(field, value)
  sets[#sets + 1] = field
  sets[#sets + 1] = value
end

-- mode fence granted-fence ttl expires granted-at renewals nonce marks (r repeated, v revoked)
local function read_lease(text)
  local mode, fence, granted, ttl, expires, since, renewals, nonce, marks =
    string.match(text or '', '^(%S+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) %-(%a*)$')
  if not mode then error('FOREIGN a lease that leasehold did not write') end
  return { mode = mode, fence = tonumber(fence), granted = granted, ttl = tonumber(ttl),
    expires = tonumber(expires), since = since, renewals = tonumber(renewals), nonce = nonce,
    repeated = string.find(marks, 'r', 1, true), revoked = string.find(marks, 'v', 1, true) }
end

local function write_lease(l)
  return string.format('%s %.0f %s %.0f %.0f %s %.0f %s -%s%s', l.mode, l.fence, l.granted, l.ttl, l.expires,
    l.since, l.renewals, l.nonce, l.repeated and 'r' or '', l.revoked and 'v' or '')
end

-- mode ttl lapses joined nonce marks (r repeated, w woken) channel wake-number
local function read_ticket(text)
  local mode, ttl, lapses, joined, nonce, marks, channel, number =
    string.match(text or '', '^(%S+) (%d+) (%d+) (%d+) (%d+) %-(%a*) (%S+) (%d+)$')
  if not mode then error('FOREIGN a ticket that leasehold did not write') end
  return { mode = mode, ttl = tonumber(ttl), lapses = tonumber(lapses), joined = joined, nonce = nonce,
    repeated = string.find(marks, 'r', 1, true), woken = string.find(marks, 'w', 1, true), channel = channel,
    number = number }
end

local function write_ticket(t)
  return string.format('%s %.0f %.0f %s %s -%s%s %s %s', t.mode, t.ttl, t.lapses, t.joined, t.nonce,
    t.repeated and 'r' or '', t.woken and 'w' or '', t.channel, t.number)
end

-- The one predicate is `ends <= now`, here and in `ended` below.
local function is_over(ends)
  return ends <= now
end

local function ends_at(when)
  if when < due then due = when end
  if when > last_end then last_end = when end
end

local function add(set_key, score, member)
  redis.call('ZADD', set_key, score, member)
  born[set_key] = true
end

-- Where an id is, until what it has there ends.
local function remember(ends)
  if finder then redis.call('SET', finder, name, 'PXAT', math.ceil(ends / 1000)) end
end

local function forget()
  if finder then redis.call('DEL', finder) end
end

local function spend(spent_id, ttl, reason)
  local ends = now + math.max(ttl, SPENT_FOR)
  local before = tonumber(redis.call('ZSCORE', spent, spent_id) or 0)
  if before == 0 then set('s:' .. spent_id, reason) end
  add(spent, math.max(ends, before), spent_id)
  ends_at(ends)
end

local function ended(set_key)
  return redis.call('ZRANGEBYSCORE', set_key, '-inf', now, 'LIMIT', 0, BATCH)
end

local function first_score(set_key)
  return tonumber(redis.call('ZRANGE', set_key, 0, 0, 'WITHSCORES')[2]) or NEVER
end

-- The fields of these ids, by their prefixes.
local function fields(ids, ...)
  local names = {}
  for _, prefix in ipairs({ ... }) do
    for _, one in ipairs(ids) do names[#names + 1] = prefix .. one end
  end
  return names
end

local function texts(ids, prefix)
  return redis.call('HMGET', name, unpack(fields(ids, prefix)))
end

-- Drops what has ended, at a cost that depends on how much that is.
local function settle()
  if due > now then return end
  repeat
    local ids = ended(spent)
    if #ids > 0 then
      redis.call('HDEL', name, unpack(fields(ids, 's:')))
      redis.call('ZREM', spent, unpack(ids))
    end
  until #ids < BATCH

  local to_spend = {}
  local function drop_leases(ids)
    for i, text in ipairs(texts(ids, 'l:')) do
      local l = read_lease(text)
      dropped[ids[i]] = true
      if l.repeated then to_spend[#to_spend + 1] = { ids[i], l.ttl, 'expired' } end
    end
    redis.call('HDEL', name, unpack(fields(ids, 'l:', 'o:')))
    expired = expired + #ids
  end
  local next_end = NEVER
  if alone then
    local ends = read_lease(redis.call('HGET', name, 'l:' .. alone)).expires
    if is_over(ends) then
      drop_leases({ alone })
      alone = false
    else
      next_end = ends
    end
  end
  repeat
    local ids = ended(leases)
    if #ids > 0 then
      drop_leases(ids)
      redis.call('ZREM', leases, unpack(ids))
    end
  until #ids < BATCH
  repeat
    local ids = ended(places)
    if #ids > 0 then
      for i, text in ipairs(texts(ids, 't:')) do
        local t = read_ticket(text)
        if t.repeated then to_spend[#to_spend + 1] = { ids[i], t.ttl, 'not_found' } end
      end
      redis.call('HDEL', name, unpack(fields(ids, 't:', 'o:')))
      redis.call('ZREM', places, unpack(ids))
      redis.call('ZREM', queue, unpack(ids))
      lapsed = lapsed + #ids
    end
  until #ids < BATCH

  held = redis.call('ZCARD', leases)
  waiting = redis.call('ZCARD', queue)
  due = math.min(next_end, first_score(leases), first_score(places), first_score(spent))
  if id ~= '' then
    local own = redis.call('HMGET', name, 'l:' .. id, 't:' .. id, 's:' .. id)
    lease, ticket, why = own[1], own[2], own[3]
  end
  for _, one in ipairs(to_spend) do
    spend(one[1], one[2], one[3])
    if one[1] == id then why = one[3] end
  end
end

local function why_gone()
  return why or (dropped[id] and 'expired') or 'not_found'
end

local function total()
  return held + (alone and 1 or 0)
end

-- Whether a claim of this mode may go in beside so many, of whom one may be exclusive.
local function admits(mode, exclusive, count)
  if mode == 'x' then return count == 0 end
  if mode == 's' then return not exclusive end
  return count < tonumber(string.sub(mode, 2))
end

-- Walks the first `most` of the queue as long as they are let in, and calls visit(id, ticket) for each; then
-- says who is inside: whether one is exclusive, how many, and whether all were let in.
local function walk(most, visit)
  local exclusive, count = alone and true or false, total()
  local from = 0
  while from < most do
    -- Nobody passes an exclusive one, and the limit of permits is that of all.
    if exclusive or (kind ~= 'rw' and not admits(kind, false, count)) then return exclusive, count, false end
    -- Most often the front decides.
    local to = from == 0 and 0 or most - 1
    local ids = redis.call('ZRANGE', queue, from, to)
    if #ids == 0 then break end
    for i, text in ipairs(texts(ids, 't:')) do
      -- This verb's own may not be written yet.
      local t = read_ticket(ids[i] == id and ticket or text)
      if not admits(t.mode, exclusive, count) then return exclusive, count, false end
      exclusive, count = exclusive or t.mode == 'x', count + 1
      if visit then visit(ids[i], t) end
    end
    from = to + 1
  end
  return exclusive, count, true
end

-- Wakes whoever is let in and was not woken yet, by number and never by id.
local function wake()
  if waiting == 0 then return end
  walk(math.min(waiting, WAKE_LIMIT), function(one, t)
    if not t.woken then
      t.woken = true
      set('t:' .. one, write_ticket(t))
      redis.call('PUBLISH', t.channel, t.number)
    end
  end)
end

-- Wakes, and writes what has changed. Deletions come first: they are allowed when memory is full, and Redis then
-- lets the rest of the script pass too, so nothing is ever half done.
local function finish()
  wake()
  if version == stored.version and expired > 0 then version = version + 1 end
  if version ~= stored.version then set('version', version) end
  if fence ~= stored.fence then set('fence', fence) end
  if held ~= stored.held then set('held', held) end
  if waiting ~= stored.waiting then set('waiting', waiting) end
  if arrivals ~= stored.arrivals then set('arrivals', arrivals) end
  if kind ~= stored.kind then set('kind', kind) end
  if alone ~= stored.alone then
    if alone then set('alone', alone) else drops[#drops + 1] = 'alone' end
  end
  if due ~= stored.due then
    if due == NEVER then drops[#drops + 1] = 'due' else set('due', due) end
  end
  if #drops > 0 then redis.call('HDEL', name, unpack(drops)) end
  if #sets == 0 then return end
  if fresh and fence == 0 then set('fence', 0) end
  local need = math.floor(math.max(fence / 256, now / 1000, last_end / 1000)) + RETENTION
  local late = keep < need
  if late then
    keep = need + SLACK
    set('keep', keep)
  end
  for from = 1, #sets, 2 * BATCH do
    redis.call('HSET', name, unpack(sets, from, math.min(from + 2 * BATCH - 1, #sets)))
  end
  if late then redis.call('PEXPIREAT', name, keep) end
  for _, key in ipairs({ leases, queue, places, spent }) do
    if born[key] or (late and not fresh) then redis.call('PEXPIREAT', key, keep) end
  end
end

-- A lease as it is shown.
local function shown(code, l)
  return { code, l.fence, l.mode, l.expires - now, l.renewals, tonumber(l.since), now }
end

-- Whether the label of this id begins with that owner: '=' and the owner against '<length>:<owner>…'.
local function owned_by(wanted)
  local label = redis.call('HGET', name, 'o:' .. id) or ''
  local length, start = string.match(label, '^(%d+):()')
  return length and string.sub(label, start, start + tonumber(length) - 1) == string.sub(wanted, 2)
end
