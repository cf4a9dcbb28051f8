-- The short way of try_acquire: a mutex that nobody has or waits for, and of which nothing has ended. The long way gives
-- the same answer; only making its functions takes Redis longer than all of this.

if ARGV[2] == 'x' and due > now and not (fresh or alone or lease or ticket or why) and held == 0 and waiting == 0 then
  local granted = math.max(fence + 1, sec * 256000 + math.floor(usec * 32 / 125))
  local ttl = tonumber(ARGV[3])
  local expires = now + ttl
  -- If the name's own expiry has to be moved, that is for the long way.
  local need = math.floor(math.max(granted / 256, expires / 1000)) + RETENTION
  if granted <= MAX_FENCE and keep >= need then
    if finder then redis.call('SET', finder, name, 'PXAT', math.ceil(expires / 1000)) end
    redis.call('HSET', name, 'fence', granted, 'version', version + 1, 'kind', 'rw', 'alone', id,
      'due', math.min(due, expires), 'o:' .. id, ARGV[4],
      'l:' .. id, string.format('x %.0f %.0f %.0f %.0f %.0f 0 %s -%s', granted, granted, ttl, expires, now, ARGV[7],
        ARGV[6] == '1' and 'r' or ''))
    return { 1, granted, 'x', ttl, 0, now, now }
  end
end

