-- Fence counters that the clock has long passed, of names nobody uses. ?1 the clock's fence, ?2 how many
DELETE FROM names WHERE name IN (
    SELECT name FROM names AS idle
    WHERE fence < ?1
        AND NOT EXISTS (SELECT 1 FROM leases WHERE leases.name = idle.name)
        AND NOT EXISTS (SELECT 1 FROM tickets WHERE tickets.name = idle.name)
        AND NOT EXISTS (SELECT 1 FROM spent WHERE spent.name = idle.name)
    LIMIT ?2
) RETURNING name;
