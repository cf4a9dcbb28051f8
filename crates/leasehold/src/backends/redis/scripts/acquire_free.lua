-- The short way of try_acquire, for a mutex without a holder, a waiter or a spent id. The long way gives the same
-- answer, but just defining its functions takes Redis about as long as all of this.

local FRONT_LOOK, LAPSE_LOOK = 1000000, 250000   -- as in state.rs

local ttl, mode, flags, nonce, ttl_millis, label = unpacked('>dssss', ARGV[2])
label = sub(ARGV[2], label)

if not alone and mode == 'x' and held + waiting + spents == 0 then
  local clock = usec * 32 / 125
  clock = sec * 256000 + clock - clock % 1
  local granted = clock
  if granted <= fence then granted = fence + 1 end
  if granted <= MAX_FENCE then
    local ends = now + ttl
    if finder then call('SET', finder, name, 'PX', ttl_millis) end
    local need = granted / 256
    if ends / 1000 > need then need = ends / 1000 end
    local late = keep < need + RETENTION
    if late then keep = need - need % 1 + RETENTION + SLACK end
    local kept = pack('>c4dddc22dddss', PLAIN_MARK, granted, version + 1, keep, id, granted, ttl, now, nonce,
      sub(flags, 1, 1) == 'r' and 'r' or '') .. label
    if late then
      call('SET', name, kept, 'PXAT', keep)
      call('PEXPIREAT', KEYS[2], keep)   -- the note, if there is one
    else
      call('SET', name, kept, 'KEEPTTL')
    end
    if granted == clock then return now end
    return { 0, granted, now }
  end
end

