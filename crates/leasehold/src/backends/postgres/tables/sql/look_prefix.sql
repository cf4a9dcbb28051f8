-- Names in use: $1 from this on, $2 below this if given, $3 after this, $4 how many, $5 how many names to look at.
-- If there may be more, the last name that was looked at comes last, as `reached`.
WITH clock AS MATERIALIZED (SELECT clock_timestamp() AS now), walked AS MATERIALIZED (
    SELECT n.name, n.holders > 0 OR n.waiters > 0 AS used FROM leasehold.names AS n
    WHERE n.name >= $1 AND ($2::text IS NULL OR n.name < $2) AND n.name > $3
    ORDER BY n.name LIMIT $5
), wanted AS (
    (
        SELECT w.name, false AS reached, '' AS asked FROM walked AS w, clock
        WHERE w.used
            AND (EXISTS (SELECT 1 FROM leasehold.leases AS l WHERE l.name = w.name AND l.expires > clock.now)
                OR EXISTS (SELECT 1 FROM leasehold.tickets AS t WHERE t.name = w.name AND t.lapses > clock.now))
        ORDER BY w.name LIMIT $4
    )
    UNION ALL SELECT max(name), true, '' FROM walked HAVING count(*) = $5
)
