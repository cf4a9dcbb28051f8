-- Names of which something has expired, lapsed or can be forgotten. ?1 now, ?2 how many
SELECT name FROM leases WHERE expires_us <= ?1
UNION
SELECT name FROM places WHERE lapses_us <= ?1
UNION
SELECT name FROM spent WHERE until_us <= ?1
LIMIT ?2;
