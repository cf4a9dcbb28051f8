-- inspect: shows a name, with live leases and tickets only. Changes nothing.
--
-- KEYS  as in head.lua
-- ARGV  1 an id, or ''
-- gives the time, the fence, the version, the first leases (id, row, …), that of the id among them, how many there are;
--       the first tickets likewise, how many wait; 1 if that id has a lease or a place; and the note or ''

local call, sub = redis.call, string.sub
local name, rows, leases, queue, places, grants = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[7]
local asked = ARGV[1]
local SHOWN, BATCH = 100, 500

local time = call('TIME')
local now = time[1] * 1000000 + time[2]
local after_now = string.format('(%.0f', now)

local head = call('GET', name)
if not head then return { now, 0, 0, {}, 0, {}, 0, 0, '' } end
local mark, fence, version, keep, due, held, waiting, spents, arrivals, kind, rest
local plain = sub(head, 1, 4) == 'LH0:' and #head >= 28
if plain then
  mark, fence, version, keep, rest = struct.unpack('>c4ddd', head)
  held, waiting = 0, 0
elseif sub(head, 1, 4) == 'LH1:' and #head >= 69 then
  mark, fence, version, keep, due, held, waiting, spents, arrivals, kind, rest = struct.unpack('>c4dddddddds', head)
elseif string.find(head, '^LH[2-9]:') then
  return redis.error_reply('NEWER the key of the name was written by a newer leasehold')
else
  return redis.error_reply('FOREIGN the key of the name holds something that leasehold did not write')
end

local seen = {}
-- Adds the id and row of each entry that ends after now, in this order, up to SHOWN of them.
local function show(shown, order, ends)
  local from, ids = 0
  repeat
    ids = call('ZRANGE', order, from, from + BATCH - 1)
    for _, id in ipairs(ids) do
      if #shown >= 2 * SHOWN then return end
      if not seen[id] and tonumber(call('ZSCORE', ends, id) or 0) > now then
        seen[id] = true
        shown[#shown + 1] = id
        shown[#shown + 1] = call('HGET', rows, id) or ''
      end
    end
    from = from + BATCH
  until #ids == 0
end

local holders, count = {}, 0
if rest <= #head then
  local row = sub(head, rest + 22)
  if plain then
    local of, ttl, since, nonce, marks, label = struct.unpack('>dddss', row)
    row = struct.pack('>c1sddddddss', 'L', 'x', of, of, ttl, since + ttl, since, 0, nonce, marks) .. sub(row, label)
  end
  local letter, mode, of, granted, ttl, ends = struct.unpack('>c1sdddd', row)
  if ends > now then
    holders, count = { sub(head, rest, rest + 21), row }, 1
    seen[holders[1]] = true
  end
end
if held > 0 then
  count = call('ZCOUNT', leases, after_now, '+inf')
  show(holders, grants, leases)
  -- Leases granted before the set of grants existed are not in it.
  if #holders < 2 * math.min(count, SHOWN) then show(holders, leases, leases) end
  if not seen[asked] and tonumber(call('ZSCORE', leases, asked) or 0) > now then
    seen[asked] = true
    holders[2 * SHOWN - 1], holders[2 * SHOWN] = asked, call('HGET', rows, asked) or ''
  end
end

local waiters = {}
if waiting > 0 then show(waiters, queue, places) end
local known = seen[asked] or waiting > 0 and tonumber(call('ZSCORE', places, asked) or 0) > now

return { now, fence, version, holders, count, waiters,
  waiting > 0 and call('ZCOUNT', places, after_now, '+inf') or 0, known and 1 or 0,
  call('HGET', rows, 'note') or '' }
