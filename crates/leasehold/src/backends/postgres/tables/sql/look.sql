-- What there is to see of the wanted names, in one look: the first hundred holders in the order of their grants, one of
-- them the lease that was asked for, then the first hundred who wait, each with how many there are.
SELECT
    clock.now, wanted.name, coalesce(n.version, 0), coalesce(n.fence, 0),
    x.waits, x.id, x.owner, x.metadata, x.mode, x.permits, x.fence, x.renewals, x.since, x.ends, x.revoked, x.length,
    wanted.reached
FROM wanted CROSS JOIN clock
LEFT JOIN leasehold.names AS n ON n.name = wanted.name
LEFT JOIN LATERAL (
    (
        SELECT false AS waits, l.granted AS place, l.id, l.owner, l.metadata, l.mode, l.permits, l.fence, l.renewals,
            l.granted_at AS since, l.expires AS ends, l.revoked, c.length
        FROM leasehold.leases AS l CROSS JOIN (
            SELECT count(*) AS length FROM leasehold.leases AS c WHERE c.name = wanted.name AND c.expires > clock.now
        ) AS c
        WHERE l.name = wanted.name AND l.expires > clock.now
        ORDER BY l.id = wanted.asked DESC, l.granted LIMIT 100
    )
    UNION ALL (
        SELECT true, t.arrival, t.id, t.owner, NULL, t.mode, t.permits, 0, 0, t.joined, t.lapses, false,
            count(*) OVER ()
        FROM leasehold.tickets AS t WHERE t.name = wanted.name AND t.lapses > clock.now
        ORDER BY t.arrival LIMIT 100
    )
) AS x ON NOT wanted.reached
ORDER BY wanted.name, wanted.reached, x.waits, x.place
