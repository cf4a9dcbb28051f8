-- What there is to see of the wanted names, in one look: holders in the order of their grants, then the first
-- hundred who wait, each with how many do.
SELECT
    clock.now, wanted.name, coalesce(n.version, 0), coalesce(n.fence, 0),
    x.waits, x.id, x.owner, x.metadata, x.mode, x.permits, x.fence, x.renewals, x.since, x.ends, x.revoked, x.length,
    wanted.reached
FROM wanted CROSS JOIN clock
LEFT JOIN leasehold.names AS n ON n.name = wanted.name
LEFT JOIN LATERAL (
    SELECT false AS waits, l.granted AS place, l.id, l.owner, l.metadata, l.mode, l.permits, l.fence, l.renewals,
        l.granted_at AS since, l.expires AS ends, l.revoked, 0::bigint AS length
    FROM leasehold.leases AS l WHERE l.name = wanted.name AND l.expires > clock.now
    UNION ALL (
        SELECT true, t.arrival, t.id, t.owner, NULL, t.mode, t.permits, 0, 0, t.joined, t.lapses, false,
            count(*) OVER ()
        FROM leasehold.tickets AS t WHERE t.name = wanted.name AND t.lapses > clock.now
        ORDER BY t.arrival LIMIT 100
    )
) AS x ON NOT wanted.reached
ORDER BY wanted.name, wanted.reached, x.waits, x.place
