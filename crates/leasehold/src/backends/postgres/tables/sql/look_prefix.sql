-- Names in use: $1 from this on, $2 below this if given, $3 after this, $4 how many
WITH clock AS MATERIALIZED (SELECT clock_timestamp() AS now), wanted AS (
    SELECT n.name FROM leasehold.names AS n, clock
    WHERE n.name >= $1 AND ($2::text IS NULL OR n.name < $2) AND n.name > $3
        AND (n.holders > 0 OR n.waiters > 0)
        AND (EXISTS (SELECT 1 FROM leasehold.leases AS l WHERE l.name = n.name AND l.expires > clock.now)
            OR EXISTS (SELECT 1 FROM leasehold.tickets AS t WHERE t.name = n.name AND t.lapses > clock.now))
    ORDER BY n.name LIMIT $4
)
