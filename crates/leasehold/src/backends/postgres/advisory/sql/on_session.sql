-- Takes a lock on whatever session this is, but never a second time: PostgreSQL would count, and free it only
-- after as many unlocks. NULL if the session has it already. %LOCK% is the call; the others are the key as
-- pg_locks shows it.
SELECT CASE WHEN EXISTS (
    SELECT FROM pg_locks
    WHERE locktype = 'advisory' AND pid = pg_backend_pid() AND granted
        AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
        AND classid = %HIGH% AND objid = %LOW% AND objsubid = %SPACE%
) THEN NULL ELSE %LOCK% END
