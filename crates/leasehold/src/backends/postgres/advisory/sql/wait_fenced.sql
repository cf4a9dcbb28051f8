-- Waits for the lock in the server's queue and then takes the next fence. The row is not touched before the lock is
-- granted, so a waiter blocks nobody. Placeholders as in try_fenced.sql; %WAIT% is the function that waits.
WITH waited AS MATERIALIZED (SELECT %WAIT%::text AS granted)
INSERT INTO %SCHEMA%.advisory_fences AS f (space, key, fence)
SELECT %SPACE%, %KEY%, %CLOCK% FROM waited WHERE granted IS NOT NULL
ON CONFLICT (space, key) DO UPDATE SET fence = greatest(f.fence + 1, excluded.fence)
RETURNING fence, pg_backend_pid()
