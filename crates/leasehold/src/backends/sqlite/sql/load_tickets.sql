SELECT id, mode, permits, arrival, owner, ttl_us, lapses_us, joined_us, nonce, repeated, woken
FROM tickets WHERE name = ?1;
