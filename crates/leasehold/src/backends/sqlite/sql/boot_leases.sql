-- Another boot: the clock began anew, and how long the machine was off is not known. So every lease
-- gets its full ttl again. ?1 now, ?2 now since 1970 in milliseconds
UPDATE leases SET expires_us = ?1 + ttl_us, expires_at_ms = ?2 + ttl_us / 1000;
