-- A row if the session has a lock, in whichever mode. The others are the key as pg_locks shows it.
SELECT FROM pg_locks
WHERE locktype = 'advisory' AND pid = pg_backend_pid() AND granted
    AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
    AND classid = %HIGH% AND objid = %LOW% AND objsubid = %SPACE%
