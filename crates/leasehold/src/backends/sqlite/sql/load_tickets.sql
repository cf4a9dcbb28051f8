SELECT id, mode, permits, arrival, owner, ttl_us, alone_us, joined_us, nonce, repeated, woken, keeper
FROM tickets WHERE name = ?1;
