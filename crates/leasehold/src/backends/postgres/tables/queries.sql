-- The statements of the store in tables, besides calls of its functions (`schema/`). They say `leasehold`; opening the
-- store puts in the real schema.

-- Opening the store

-- name: check
-- The questions to a server when the store is opened. $1 the schema
SELECT
    current_setting('server_version_num')::int,
    current_setting('server_encoding'),
    current_setting('transaction_isolation'),
    pg_is_in_recovery() OR current_setting('transaction_read_only')::boolean,
    pg_backend_pid(),
    EXISTS (SELECT 1 FROM pg_catalog.pg_namespace WHERE nspname = $1),
    EXISTS (SELECT 1 FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_namespace AS s ON s.oid = c.relnamespace
        WHERE s.nspname = $1 AND c.relname = 'about')

-- name: about
-- What is installed.
SELECT version, revision FROM leasehold.about

-- Renewing

-- name: renew_waiting
-- Renews leases of one name, whose row another session has locked: $1 to $10 as for `renew`. First waits for the row,
-- for $11 milliseconds; then it is locked by this transaction, and `renew` does not skip it. `renew` reads what was
-- committed meanwhile, because each of its statements has a snapshot of its own.
WITH patience AS MATERIALIZED (
    SELECT set_config('lock_timeout', $11::text, true)
), waited AS MATERIALIZED (
    SELECT n.name FROM patience CROSS JOIN leasehold.names AS n WHERE n.name = $1[1] FOR UPDATE OF n
)
SELECT r.* FROM (SELECT count(*) AS rows FROM waited) AS w
CROSS JOIN LATERAL leasehold.renew(
    CASE WHEN w.rows >= 0 THEN $1 END, $2, $3, $4, $5, $6, $7, $8, $9, $10
) AS r

-- name: renew_with_notes_waiting
-- The same for `renew_with_notes`: $1 to $12 as for that, and it waits for $13 milliseconds.
WITH patience AS MATERIALIZED (
    SELECT set_config('lock_timeout', $13::text, true)
), waited AS MATERIALIZED (
    SELECT n.name FROM patience CROSS JOIN leasehold.names AS n WHERE n.name = $1[1] FOR UPDATE OF n
)
SELECT r.* FROM (SELECT count(*) AS rows FROM waited) AS w
CROSS JOIN LATERAL leasehold.renew_with_notes(
    CASE WHEN w.rows >= 0 THEN $1 END, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12
) AS r

-- Inspecting: first the wanted names, then what an inspection shows of them

-- name: look_name
-- $1 the name
WITH clock AS MATERIALIZED (SELECT clock_timestamp() AS now), wanted AS (
    SELECT $1::text COLLATE "C" AS name, false AS reached, '' AS asked
)

-- name: look_id
-- $1 the lease id
WITH clock AS MATERIALIZED (SELECT clock_timestamp() AS now), wanted AS (
    SELECT l.name, false AS reached, $1 AS asked
    FROM leasehold.leases AS l, clock WHERE l.id = $1 AND l.expires > clock.now
    UNION SELECT t.name, false, $1 FROM leasehold.tickets AS t, clock WHERE t.id = $1 AND t.lapses > clock.now
    ORDER BY name LIMIT 1
)

-- name: look_prefix
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

-- name: look
-- What an inspection shows of the wanted names, in one query: the first hundred holders in the order of their grants,
-- among them the requested lease, then the first hundred waiters; and how many there are of each.
SELECT
    clock.now, wanted.name, coalesce(n.version, 0), coalesce(n.fence, 0),
    x.waits, x.id, x.owner, x.metadata, x.mode, x.permits, x.fence, x.renewals, x.since, x.ends, x.revoked, x.length,
    wanted.reached, n.note, n.note_fence, n.note_revision
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
