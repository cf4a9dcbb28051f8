-- Shared by the verbs: rows as tables, which waiters may enter, and settling.
--
-- Verbs are written inline, and these functions use only their arguments: to create a function that captures variables
-- takes Redis as long as to run a command.

local BATCH = 500                  -- arguments of one call: Lua's stack has room for some thousands
local rows, leases, queue, places, spent, grants = KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7]

-- Marks: r repeated, v revoked.
local function read_lease(row)
  if string.sub(row or '', 1, 1) ~= 'L' then error('FOREIGN a lease that leasehold did not write') end
  local letter, mode, fence, granted, ttl, expires, since, renewals, nonce, marks, label =
    struct.unpack('>c1sddddddss', row)
  return { mode = mode, fence = fence, granted = granted, ttl = ttl, expires = expires, since = since,
    renewals = renewals, nonce = nonce, repeated = string.sub(marks, 1, 1) == 'r',
    revoked = string.sub(marks, -1) == 'v', label = string.sub(row, label) }
end

local function write_lease(l)
  return struct.pack('>c1sddddddss', 'L', l.mode, l.fence, l.granted, l.ttl, l.expires, l.since, l.renewals, l.nonce,
    (l.repeated and 'r' or '') .. (l.revoked and 'v' or '')) .. l.label
end

-- Marks: r repeated, w woken.
local function read_ticket(row)
  if string.sub(row or '', 1, 1) ~= 'T' then error('FOREIGN a ticket that leasehold did not write') end
  local letter, mode, ttl, lapses, joined, nonce, marks, channel, number, label =
    struct.unpack('>c1sdddssss', row)
  return { mode = mode, ttl = ttl, lapses = lapses, joined = joined, nonce = nonce,
    repeated = string.sub(marks, 1, 1) == 'r', woken = string.sub(marks, -1) == 'w', channel = channel,
    number = number, label = string.sub(row, label) }
end

local function write_ticket(t)
  return struct.pack('>c1sdddssss', 'T', t.mode, t.ttl, t.lapses, t.joined, t.nonce,
    (t.repeated and 'r' or '') .. (t.woken and 'w' or ''), t.channel, t.number) .. t.label
end

-- Whether a claim of this mode may enter beside `count` others, one of which may be exclusive.
local function admits(mode, exclusive, count)
  if mode == 'x' then return count == 0 end
  if mode == 's' then return not exclusive end
  return count < tonumber(string.sub(mode, 2))
end

-- Walks the first `most` of the queue while they may enter beside `exclusive` and `count`. Returns whether one inside
-- is exclusive, how many are inside, whether all were let in, and the ids and tickets of those let in. For `id` the
-- new ticket counts, not the stored one.
local function walk(most, exclusive, count, kind, id, ticket, admits, read_ticket)
  local from, ids_in, tickets_in = 0, {}, {}
  while from < most do
    -- Nothing passes an exclusive ticket, and all permits share one limit.
    if exclusive or (kind ~= 'rw' and not admits(kind, false, count)) then
      return exclusive, count, false, ids_in, tickets_in
    end
    -- Usually the front decides.
    local to = from == 0 and 0 or most - 1
    local ids = redis.call('ZRANGE', KEYS[4], from, to)
    if #ids == 0 then break end
    for i, row in ipairs(redis.call('HMGET', KEYS[2], unpack(ids))) do
      local t = read_ticket(ids[i] == id and ticket or row)
      if not admits(t.mode, exclusive, count) then return exclusive, count, false, ids_in, tickets_in end
      exclusive, count = exclusive or t.mode == 'x', count + 1
      ids_in[#ids_in + 1], tickets_in[#tickets_in + 1] = ids[i], t
    end
    from = to + 1
  end
  return exclusive, count, true, ids_in, tickets_in
end

local function first_score(set_key)
  return tonumber(redis.call('ZRANGE', set_key, 0, 0, 'WITHSCORES')[2]) or math.huge
end

-- Whether a label has that owner: compares '=' and the owner with '<length>:<owner>…'.
local function owned_by(label, wanted)
  local length, start = string.match(label, '^(%d+):()')
  return length and string.sub(label, start, start + tonumber(length) - 1) == string.sub(wanted, 2)
end

-- The note of the name, as the field `note` of its rows keeps it: who wrote it, the revision, the text. Returns nil if
-- the note that is there comes after the given one, by promise 11.
local function note_row(given, fence)
  local revision, text = struct.unpack('>d', given)
  local before = redis.call('HGET', KEYS[2], 'note')
  if before then
    if string.sub(before, 1, 1) ~= 'N' then error('FOREIGN a note that leasehold did not write') end
    local letter, by, known = struct.unpack('>c1dd', before)
    if by > fence or by == fence and known > revision then return nil end
  end
  return struct.pack('>c1dd', 'N', fence, revision) .. string.sub(given, text)
end

local tail = ''              -- the exclusive lease: its id and its row
if alone and plain then
  local of, ttl, since, nonce, marks, label = unpacked(FRESH, head, rest + 22)
  due = since + ttl
  tail = alone .. pack(LEASE, 'L', 'x', of, of, ttl, due, since, 0, nonce, marks) .. sub(head, label)
elseif alone then
  tail = sub(head, rest)
end
local head_before = head
if plain then head_before = pack(HEAD, MARK, fence, version, keep, due, 0, 0, 0, 0, kind) .. tail end
local version_before = version
local sets, drops = {}, {}   -- rows by id, written at the end
local to_spend = {}          -- id, ttl, why; likewise
local own_set, own_drop      -- what becomes of this id's row
local note_set               -- the note to write
local ends_at = 0            -- the latest end that was written
-- Keys that may be new, and then have no expiry yet.
local rows_born, leases_born, queue_born = held + waiting + spents == 0, held == 0, waiting == 0
local expired, lapsed = 0, 0
local has_expired = false    -- this id's lease did just now

-- Settles the name: drops what has ended, at a cost that depends on how much that is. The one predicate is `ends <=
-- now`.
if due <= now then
  repeat
    local ids = call('ZRANGEBYSCORE', spent, '-inf', now, 'LIMIT', 0, BATCH)
    if #ids > 0 then
      call('HDEL', rows, unpack(ids))
      call('ZREM', spent, unpack(ids))
    end
  until #ids < BATCH

  due = NEVER
  if alone then
    local l = read_lease(sub(tail, 23))
    if l.expires <= now then
      -- Allowed when memory is full, like a deletion, and Redis then lets the rest of the script pass too.
      call('PEXPIREAT', name, keep)
      if l.repeated then to_spend[#to_spend + 1] = { alone, l.ttl, 'expired' } end
      has_expired = alone == id
      expired = 1
      alone, tail = false, ''
    else
      due = l.expires
    end
  end
  repeat
    local ids = call('ZRANGEBYSCORE', leases, '-inf', now, 'LIMIT', 0, BATCH)
    if #ids > 0 then
      for i, row in ipairs(call('HMGET', rows, unpack(ids))) do
        local l = read_lease(row)
        if l.repeated then to_spend[#to_spend + 1] = { ids[i], l.ttl, 'expired' } end
        has_expired = has_expired or ids[i] == id
      end
      call('HDEL', rows, unpack(ids))
      call('ZREM', leases, unpack(ids))
      call('ZREM', grants, unpack(ids))
      expired = expired + #ids
    end
  until #ids < BATCH
  repeat
    local ids = call('ZRANGEBYSCORE', places, '-inf', now, 'LIMIT', 0, BATCH)
    if #ids > 0 then
      for i, row in ipairs(call('HMGET', rows, unpack(ids))) do
        local t = read_ticket(row)
        if t.repeated then to_spend[#to_spend + 1] = { ids[i], t.ttl, 'not_found' } end
      end
      call('HDEL', rows, unpack(ids))
      call('ZREM', places, unpack(ids))
      call('ZREM', queue, unpack(ids))
      lapsed = lapsed + #ids
    end
  until #ids < BATCH

  held, waiting, spents = call('ZCARD', leases), call('ZCARD', queue), call('ZCARD', spent)
  rows_born, leases_born, queue_born = true, held == 0, waiting == 0
  due = math.min(due, first_score(leases), first_score(places), first_score(spent))
end

-- What is stored for this id: at most one of the three.
local lease, ticket, why
if alone == id then
  lease = sub(tail, 23)
elseif id ~= '' and held + waiting + spents > 0 then
  local row = call('HGET', rows, id)
  local letter = row and sub(row, 1, 1)
  if letter == 'L' then lease = row elseif letter == 'T' then ticket = row elseif letter then why = sub(row, 2) end
end
for _, one in ipairs(to_spend) do
  if one[1] == id then why = one[3] end
end

local answer
