INSERT INTO tickets (
    name, id, mode, permits, arrival, owner, ttl_us, alone_us, joined_us, nonce, repeated, woken, keeper
) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13)
ON CONFLICT (name, id) DO UPDATE SET
    mode = excluded.mode,
    permits = excluded.permits,
    arrival = excluded.arrival,
    owner = excluded.owner,
    ttl_us = excluded.ttl_us,
    alone_us = excluded.alone_us,
    joined_us = excluded.joined_us,
    nonce = excluded.nonce,
    repeated = excluded.repeated,
    woken = excluded.woken,
    keeper = excluded.keeper;
