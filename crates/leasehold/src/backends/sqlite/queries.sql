-- The statements of the SQLite store. Parameters are explained where the names of the columns do not explain them.

-- Opening the file

-- name: probe
-- Identifies the file before anything is changed.
SELECT
    (SELECT application_id FROM pragma_application_id),
    (SELECT user_version FROM pragma_user_version),
    (SELECT count(*) FROM sqlite_schema);

-- name: setup
-- Durable before answering: the log is synced with every commit.
PRAGMA synchronous = FULL;
-- What is in the file is data, never a program.
PRAGMA trusted_schema = OFF;
PRAGMA temp_store = MEMORY;

-- name: host
SELECT boot_id FROM host;

-- name: put_host
INSERT INTO host (one, boot_id, swept_at_ms) VALUES (1, ?1, ?2)
ON CONFLICT (one) DO UPDATE SET boot_id = excluded.boot_id;

-- The first opening after a boot: the boot-time clock has started anew, and how long the machine was off is unknown

-- name: boot_leases
-- Every lease gets its full ttl again. ?1 now, ?2 now since 1970 in milliseconds
UPDATE leases SET expires_us = ?1 + ttl_us, expires_at_ms = ?2 + ttl_us / 1000;

-- name: boot_spent
-- Spent ids stay refused, long enough in any case. ?1 until when
UPDATE spent SET until_us = ?1;

-- name: boot_tickets_spent
-- A repeated ticket leaves a spent id, as if it had lapsed. ?1 until when
INSERT INTO spent (name, id, until_us, why)
SELECT name, id, ?1, 'not_found' FROM tickets WHERE repeated = 1
ON CONFLICT DO NOTHING;

-- name: boot_tickets
-- No waiter survived the boot.
DELETE FROM tickets;

-- name: boot_keepers
-- Nor did any process that keeps tickets.
DELETE FROM keepers;

-- name: boot_names
-- Marks every name as changed, so that no process trusts its copy.
UPDATE names SET changes = changes + 1;

-- One name

-- name: load_name
SELECT fence, version, changes, note, note_fence, note_revision FROM names WHERE name = ?1;

-- name: load_leases
SELECT
    id, mode, permits, fence, owner, metadata, ttl_us, expires_us, granted_at_us, renewals, nonce, repeated,
    revoked, granted_fence
FROM leases WHERE name = ?1;

-- name: load_tickets
SELECT id, mode, permits, arrival, owner, ttl_us, alone_us, joined_us, nonce, repeated, woken, keeper
FROM tickets WHERE name = ?1;

-- name: load_spent
SELECT id, until_us, why FROM spent WHERE name = ?1;

-- name: put_name
INSERT INTO names (name, fence, version, changes) VALUES (?1, ?2, ?3, ?4)
ON CONFLICT (name) DO UPDATE SET
    fence = excluded.fence,
    version = excluded.version,
    changes = excluded.changes;

-- name: put_note
-- Of a name that is there.
UPDATE names SET note = ?2, note_fence = ?3, note_revision = ?4 WHERE name = ?1;

-- name: put_lease
INSERT INTO leases (
    name, id, mode, permits, fence, owner, metadata, ttl_us, expires_us, granted_at_us, renewals, nonce,
    repeated, revoked, granted_fence, expires_at_ms
) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16)
ON CONFLICT (name, id) DO UPDATE SET
    mode = excluded.mode,
    permits = excluded.permits,
    fence = excluded.fence,
    owner = excluded.owner,
    metadata = excluded.metadata,
    ttl_us = excluded.ttl_us,
    expires_us = excluded.expires_us,
    granted_at_us = excluded.granted_at_us,
    renewals = excluded.renewals,
    nonce = excluded.nonce,
    repeated = excluded.repeated,
    revoked = excluded.revoked,
    granted_fence = excluded.granted_fence,
    expires_at_ms = excluded.expires_at_ms;

-- name: put_ticket
INSERT INTO tickets (
    name, id, mode, permits, arrival, owner, ttl_us, alone_us, joined_us, nonce, repeated, woken, keeper
) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13)
ON CONFLICT (name, id) DO UPDATE SET
    mode = excluded.mode,
    permits = excluded.permits,
    arrival = excluded.arrival,
    owner = excluded.owner,
    ttl_us = excluded.ttl_us,
    alone_us = excluded.alone_us,
    joined_us = excluded.joined_us,
    nonce = excluded.nonce,
    repeated = excluded.repeated,
    woken = excluded.woken,
    keeper = excluded.keeper;

-- name: put_spent
INSERT INTO spent (name, id, until_us, why) VALUES (?1, ?2, ?3, ?4)
ON CONFLICT (name, id) DO UPDATE SET until_us = excluded.until_us, why = excluded.why;

-- name: drop_lease
DELETE FROM leases WHERE name = ?1 AND id = ?2;

-- name: drop_ticket
DELETE FROM tickets WHERE name = ?1 AND id = ?2;

-- name: drop_spent
DELETE FROM spent WHERE name = ?1 AND id = ?2;

-- Keepers: processes that keep the places of their waiters by one heartbeat

-- name: load_keepers
SELECT keeper, until_us FROM keepers;

-- name: new_keeper
-- ?1 until when
INSERT INTO keepers (until_us) VALUES (?1) RETURNING keeper;

-- name: put_keeper
-- Also restores a keeper that was dropped as dead while its process was only held up. ?1 keeper, ?2 until when
INSERT INTO keepers (keeper, until_us) VALUES (?1, ?2)
ON CONFLICT (keeper) DO UPDATE SET until_us = excluded.until_us;

-- name: drop_keepers
-- Drops keepers whose time has passed: their tickets lapse anyway. ?1 now
DELETE FROM keepers WHERE until_us <= ?1;

-- Finding names

-- name: find_id
-- The names on which an id holds a lease or waits. ?1 id, ?2 now
SELECT name FROM leases WHERE id = ?1 AND expires_us > ?2
UNION
SELECT name FROM places WHERE id = ?1 AND lapses_us > ?2;

-- name: find_in_use
-- Names in use at or after ?1 and after ?2 (null: from the beginning), in order. ?3 now, ?4 how many
SELECT name FROM leases WHERE name >= ?1 AND (?2 IS NULL OR name > ?2) AND expires_us > ?3
UNION
SELECT name FROM places WHERE name >= ?1 AND (?2 IS NULL OR name > ?2) AND lapses_us > ?3
ORDER BY name LIMIT ?4;

-- name: find_due
-- Names with something that has expired, lapsed or can be forgotten. ?1 now, ?2 how many
SELECT name FROM leases WHERE expires_us <= ?1
UNION
SELECT name FROM places WHERE lapses_us <= ?1
UNION
SELECT name FROM spent WHERE until_us <= ?1
LIMIT ?2;

-- name: is_due
-- Whether a lease or a ticket of a name has ended. ?1 name, ?2 now
SELECT
    EXISTS (SELECT 1 FROM leases WHERE name = ?1 AND expires_us <= ?2)
    OR EXISTS (SELECT 1 FROM places WHERE name = ?1 AND lapses_us <= ?2);

-- name: woken
-- Tickets that were woken and have not tried again yet, in order of arrival.
SELECT name, id FROM tickets WHERE woken = 1 ORDER BY name, arrival;

-- name: counts
-- How many leases and tickets there are.
SELECT (SELECT count(*) FROM leases), (SELECT count(*) FROM tickets);

-- Sweeping

-- name: forget
-- Drops fence counters that the clock has long passed, of idle names. ?1 the clock's fence, ?2 how many
DELETE FROM names WHERE name IN (
    SELECT name FROM names AS idle
    WHERE fence < ?1
        AND NOT EXISTS (SELECT 1 FROM leases WHERE leases.name = idle.name)
        AND NOT EXISTS (SELECT 1 FROM tickets WHERE tickets.name = idle.name)
        AND NOT EXISTS (SELECT 1 FROM spent WHERE spent.name = idle.name)
    LIMIT ?2
) RETURNING name;

-- name: swept
SELECT swept_at_ms FROM host;

-- name: put_swept
UPDATE host SET swept_at_ms = ?1;
