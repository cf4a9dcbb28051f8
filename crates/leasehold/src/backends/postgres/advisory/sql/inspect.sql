-- Who holds a key or waits for it, as the server sees it. $1, $2: the halves of the key; $3: its space.
SELECT l.pid, l.granted, l.mode = 'ShareLock' AS shared, coalesce(a.application_name, ''),
    extract(epoch FROM clock_timestamp() - a.query_start)::float8 AS waited
FROM pg_locks AS l LEFT JOIN pg_stat_activity AS a ON a.pid = l.pid
WHERE l.locktype = 'advisory' AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
    AND l.classid = $1 AND l.objid = $2 AND l.objsubid = $3
ORDER BY a.query_start NULLS FIRST, l.pid
