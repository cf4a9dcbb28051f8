-- The short way of release: a mutex that nobody waits for, of which nothing has ended, and whose id need not be refused
-- afterwards. The long way gives the same answer.

if lease and alone == id and waiting == 0 and due > now and ARGV[3] == '' and ARGV[4] == '' and ARGV[5] == '' then
  local held_by = string.match(lease, '^x (%d+) %d+ %d+ %d+ %d+ %d+ %d+ %-v?$')
  if held_by and (ARGV[2] == '' or ARGV[2] == held_by) then
    if finder then redis.call('DEL', finder) end
    redis.call('HDEL', name, 'l:' .. id, 'o:' .. id, 'alone')
    redis.call('HSET', name, 'version', version + 1)
    return { 1, now }
  end
end

