SELECT
    id, mode, permits, fence, owner, metadata, ttl_us, expires_us, granted_at_us, renewals, nonce, repeated,
    revoked, granted_fence
FROM leases WHERE name = ?1;
