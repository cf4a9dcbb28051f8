-- A new session of our own: no limit of the server may end an idle session that holds locks; a statement that hangs, for
-- example behind somebody who has locked the tables of fences, must not hold up the others for long (waits have their own
-- limits, see wait.sql); and transactions see what others have just committed. Also when the server's process began, by
-- which it can be told from a later one of the same number. Plans are kept: a fence is taken between one holder and the
-- next, who wait for its planning. None is better for some keys than for others, and none may be a scan, which a table
-- that is still empty suggests.
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
