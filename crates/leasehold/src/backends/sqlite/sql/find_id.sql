-- The names on which an id holds a lease or waits. ?1 id, ?2 now
SELECT name FROM leases WHERE id = ?1 AND expires_us > ?2
UNION
SELECT name FROM places WHERE id = ?1 AND lapses_us > ?2;
