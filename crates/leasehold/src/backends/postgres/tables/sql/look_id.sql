-- $1 the lease id
WITH clock AS MATERIALIZED (SELECT clock_timestamp() AS now), wanted AS (
    SELECT l.name, false AS reached, $1 AS asked
    FROM leasehold.leases AS l, clock WHERE l.id = $1 AND l.expires > clock.now
    UNION SELECT t.name, false, $1 FROM leasehold.tickets AS t, clock WHERE t.id = $1 AND t.lapses > clock.now
    ORDER BY name LIMIT 1
)
