-- The statements for session locks. Two scripts are files of their own: fences.sql, because an administrator may run
-- it by hand, and wait.sql, which is one block of PL/pgSQL. %SCHEMA% is the quoted schema of the fence tables, %CLOCK%
-- the clock below.

-- Sessions

-- name: session
-- Sets up a new session: no limit of the server may end an idle session that holds locks. A statement that hangs, for
-- example because another transaction has locked the fence tables, must not hold up the others for long (waits have
-- their own limits, see wait.sql). Transactions see what others have just committed. Also returns when the server
-- process began, which tells it from a later one with the same number. Plans are kept: a fence is taken between one
-- holder and the next, which would wait for the planning. No plan is better for some keys than for others, and none
-- may be a scan, which a table that is still empty suggests.
SELECT count(set_config(name, value, false)), pg_backend_pid(), pg_is_in_recovery(),
    (SELECT (extract(epoch FROM backend_start) * 1000000)::bigint FROM pg_stat_activity WHERE pid = pg_backend_pid())
FROM (VALUES
    ('statement_timeout', '%TIMEOUT%'),
    ('lock_timeout', '4s'),
    ('idle_session_timeout', '0'),
    ('transaction_timeout', '0'),
    ('default_transaction_isolation', 'read committed'),
    ('default_transaction_read_only', 'off'),
    ('plan_cache_mode', 'force_generic_plan'),
    ('enable_seqscan', 'off'),
    ('enable_bitmapscan', 'off'),
    ('jit', 'off')
) AS wanted (name, value)
WHERE current_setting(name, true) IS NOT NULL

-- name: gone_client
-- Makes a waiter leave the queue when its client has died (since PostgreSQL 14). Only some systems can do that, Linux
-- among them; others refuse the setting.
SELECT set_config('client_connection_check_interval', '2s', false)
WHERE current_setting('client_connection_check_interval', true) IS NOT NULL

-- name: is_there
-- Whether the server still has a session: its process, $1, which began at $2. If so, one row: whether it is at work.
SELECT state IS DISTINCT FROM 'idle' FROM pg_stat_activity
WHERE pid = $1 AND (extract(epoch FROM backend_start) * 1000000)::bigint IS NOT DISTINCT FROM $2

-- Locks

-- name: held
-- A row if the session has the lock, in either mode. The conditions give the key as pg_locks shows it.
SELECT FROM pg_locks
WHERE locktype = 'advisory' AND pid = pg_backend_pid() AND granted
    AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
    AND classid = %HIGH% AND objid = %LOW% AND objsubid = %SPACE%

-- name: on_session
-- Takes a lock on the current session, but never a second time: PostgreSQL would count, and free it only after as many
-- unlocks. NULL if the session has it already. %LOCK% is the call, %HELD% the query above.
SELECT CASE WHEN EXISTS (%HELD%) THEN NULL ELSE %LOCK% END

-- name: inspect
-- The holders and waiters of a key, as the server sees them. $1, $2: the halves of the key; $3: its space.
SELECT l.pid, l.granted, l.mode = 'ShareLock' AS shared, coalesce(a.application_name, ''),
    extract(epoch FROM clock_timestamp() - a.query_start)::float8 AS waited
FROM pg_locks AS l LEFT JOIN pg_stat_activity AS a ON a.pid = l.pid
WHERE l.locktype = 'advisory' AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
    AND l.classid = $1 AND l.objid = $2 AND l.objsubid = $3
ORDER BY a.query_start NULLS FIRST, l.pid

-- Fences

-- name: clock
-- The fence by the clock alone.
(floor(extract(epoch FROM clock_timestamp()) * 256000))::bigint

-- name: ready
-- Whether the fence tables exist, and this user may use them. $1: their names, quoted, with their schema.
SELECT bool_and(to_regclass(name) IS NOT NULL),
    bool_and(coalesce(has_table_privilege(to_regclass(name), 'SELECT')
        AND has_table_privilege(to_regclass(name), 'INSERT')
        AND has_table_privilege(to_regclass(name), 'UPDATE'), false))
FROM unnest($1) AS tables (name)

-- name: fenced
-- Takes the lock and, only if it was granted, the next fence, in one round trip. A crash between the two frees the
-- lock, and skips at most a number. %LOCK% is the function with its key, or whether an earlier wait got it; %KEY% the
-- key as one number, %SPACE% its space, %SCHEMA% the quoted schema, %AHEAD% how far fences are reserved.
--
-- `kept` may be older than the lock, which is taken later: then more is reserved than necessary. And where `live` has
-- no row, no session can have given out a fence meanwhile, so `kept` is right when it decides.
WITH kept AS MATERIALIZED (
    SELECT coalesce(max(fence), 0) AS fence FROM %SCHEMA%.advisory_fences WHERE space = %SPACE% AND key = %KEY%
), asked AS MATERIALIZED (
    SELECT %LOCK% AS answer
), given AS (
    INSERT INTO %SCHEMA%.advisory_fences_live AS live (space, key, fence, clock)
    SELECT %SPACE%, %KEY%, greatest(kept.fence + 1, %CLOCK%), %CLOCK% FROM asked, kept WHERE answer
    ON CONFLICT (space, key) DO UPDATE SET fence = greatest(live.fence + 1, excluded.clock)
    RETURNING fence
), reserved AS (
    INSERT INTO %SCHEMA%.advisory_fences AS f (space, key, fence)
    SELECT %SPACE%, %KEY%, given.fence + %AHEAD% FROM given, kept WHERE given.fence > kept.fence
    ON CONFLICT (space, key) DO UPDATE SET fence = greatest(f.fence, excluded.fence)
)
SELECT fence, pg_backend_pid() FROM given

-- name: last_fence
-- The last fence of a key; after a crash, the highest it can have been. $1: its space, $2: the key as one number.
SELECT fence FROM (
    SELECT fence, 1 AS source FROM %SCHEMA%.advisory_fences_live WHERE space = $1 AND key = $2
    UNION ALL
    SELECT fence, 2 FROM %SCHEMA%.advisory_fences WHERE space = $1 AND key = $2
) AS known ORDER BY source LIMIT 1

-- name: raise
-- Raises the counter of a key to at least $3. $1: its space, $2: the key as one number. If $3 is further than $4 ahead
-- of the clock, or more than one above the last fence, there is no row.
WITH last AS MATERIALIZED (
    SELECT coalesce(
        (SELECT fence FROM %SCHEMA%.advisory_fences_live WHERE space = $1 AND key = $2),
        (SELECT fence FROM %SCHEMA%.advisory_fences WHERE space = $1 AND key = $2), 0) AS fence
), live AS (
    INSERT INTO %SCHEMA%.advisory_fences_live AS f (space, key, fence, clock)
    SELECT $1, $2, $3, $3 FROM last WHERE $3 <= greatest(last.fence + 1, %CLOCK% + $4)
    ON CONFLICT (space, key) DO UPDATE SET fence = greatest(f.fence, excluded.fence)
    RETURNING fence
)
INSERT INTO %SCHEMA%.advisory_fences AS f (space, key, fence) SELECT $1, $2, fence FROM live
ON CONFLICT (space, key) DO UPDATE SET fence = greatest(f.fence, excluded.fence)
RETURNING 1

-- name: forget
-- Forgets counters that the clock has passed by more than $1: the clock alone then gives a higher fence. Looks at $4
-- counters after the key $2, $3. Returns how many it looked at, how many it deleted, and the last key.
WITH part AS MATERIALIZED (
    SELECT space, key FROM %SCHEMA%.%TABLE% WHERE (space, key) > ($2, $3) ORDER BY space, key LIMIT $4
), gone AS (
    DELETE FROM %SCHEMA%.%TABLE% AS f USING part
    WHERE f.space = part.space AND f.key = part.key AND f.fence < %CLOCK% - $1
    RETURNING 1
)
SELECT (SELECT count(*) FROM part), (SELECT count(*) FROM gone), space, key FROM part ORDER BY space DESC, key DESC LIMIT 1
