-- The short ways of try_acquire on a mutex whose queue has nothing expired: the front takes it, or a new waiter joins
-- at the end, behind a holder or a front that is about to be one. The long way gives the same answers.

if mode == 'x' and ARGV[3] and waiting > 0 and held + spents == 0 and kind == 'rw' and due > now and alone ~= id then
  local patience, patience_millis, channel, number = unpacked('>dsss', ARGV[3])
  local rows, queue, places = KEYS[2], KEYS[4], KEYS[5]
  local own = call('HGET', rows, id)
  local front = not alone and call('ZRANGE', queue, 0, 0)[1]
  local ends = own and now + ttl or now + patience
  local need = fence / 256
  if ends / 1000 > need then need = ends / 1000 end

  -- If the name's own expiry has to move, the long way does it.
  if keep < need + 1 + RETENTION then
    front = nil
  elseif own and front == id then
    local letter, wanted, claimed, lapses, joined, known_nonce, marks = unpacked('>c1sdddss', own)
    local clock = usec * 32 / 125
    local granted = sec * 256000 + clock - clock % 1
    if granted <= fence then granted = fence + 1 end
    if letter == 'T' and wanted == 'x' and (sub(flags, -1) == 'f' or known_nonce == nonce) and granted <= MAX_FENCE then
      if finder then call('SET', finder, name, 'PX', ttl_millis) end
      call('ZREM', queue, id)
      call('ZREM', places, id)
      call('HDEL', rows, id)
      if ends < due then due = ends end
      local repeated = sub(flags, 1, 1) == 'r' or sub(marks, 1, 1) == 'r'
      call('SET', name, pack(ALONE, MARK, granted, version + 1, keep, due, 0, waiting - 1, 0, arrivals, 'rw', id,
        'L', 'x', granted, granted, ttl, ends, now, 0, nonce, repeated and 'r' or '') .. label, 'KEEPTTL')
      return { 0, granted, now }
    end
  elseif not own and (alone or sub(call('HGET', rows, front) or '', 1, 3) == 'Tx\0') then
    if finder then call('SET', finder, name, 'PX', patience_millis) end
    arrivals = arrivals + 1
    call('ZADD', places, ends, id)
    call('ZADD', queue, arrivals, id)
    call('HSET', rows, id, pack('>c1sdddssss', 'T', 'x', ttl, ends, now, nonce,
      sub(flags, 1, 1) == 'r' and 'r' or '', channel, number) .. label)
    -- No place lapses before this.
    local lapse = due - now
    local look = patience / 3
    look = look - look % 1
    if lapse < look then lapse = call('ZRANGE', places, 0, 0, 'WITHSCORES')[2] - now end
    if lapse < LAPSE_LOOK then lapse = LAPSE_LOOK end
    if lapse < look then look = lapse end
    local left, owner = -1, ''
    if alone then
      local letter, held_as, of, from, shortest, until_then, since, renewals, by, marks, at =
        unpacked(LEASE, head, rest + 22)
      left, owner = until_then - now, sub(head, at)
      if ttl < shortest then shortest = ttl end
      if shortest < FRONT_LOOK then shortest = FRONT_LOOK end
      if shortest < look then look = shortest end
    end
    if ends < due then due = ends end
    call('SET', name, pack(HEAD, MARK, fence, version, keep, due, 0, waiting + 1, 0, arrivals, 'rw')
      .. sub(head, rest), 'KEEPTTL')
    return { 2, look, waiting, waiting + 1, left, owner, now }
  end
end

