-- Whether a lease or a place of a name has ended. ?1 name, ?2 now
SELECT
    EXISTS (SELECT 1 FROM leases WHERE name = ?1 AND expires_us <= ?2)
    OR EXISTS (SELECT 1 FROM places WHERE name = ?1 AND lapses_us <= ?2);
