INSERT INTO leases (
    name, id, mode, permits, fence, owner, metadata, ttl_us, expires_us, granted_at_us, renewals, nonce,
    repeated, revoked, granted_fence, expires_at_ms
) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16)
ON CONFLICT (name, id) DO UPDATE SET
    mode = excluded.mode,
    permits = excluded.permits,
    fence = excluded.fence,
    owner = excluded.owner,
    metadata = excluded.metadata,
    ttl_us = excluded.ttl_us,
    expires_us = excluded.expires_us,
    granted_at_us = excluded.granted_at_us,
    renewals = excluded.renewals,
    nonce = excluded.nonce,
    repeated = excluded.repeated,
    revoked = excluded.revoked,
    granted_fence = excluded.granted_fence,
    expires_at_ms = excluded.expires_at_ms;
