-- Names in use at or after ?1 and after ?2 (null: from the beginning), in order. ?3 now, ?4 how many
SELECT name FROM leases WHERE name >= ?1 AND (?2 IS NULL OR name > ?2) AND expires_us > ?3
UNION
SELECT name FROM places WHERE name >= ?1 AND (?2 IS NULL OR name > ?2) AND lapses_us > ?3
ORDER BY name LIMIT ?4;
