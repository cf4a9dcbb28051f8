-- Tries the lock and, only if it was granted, takes the next fence: in one round trip. The CTE is evaluated once and
-- before the row is touched; a crash between the two frees the lock, and at most skips a number.
-- %TRY% is the function with its key, %KEY% the key as one number, %SPACE% its space, %SCHEMA% the quoted schema.
WITH tried AS MATERIALIZED (SELECT %TRY% AS granted)
INSERT INTO %SCHEMA%.advisory_fences AS f (space, key, fence)
SELECT %SPACE%, %KEY%, %CLOCK% FROM tried WHERE granted
ON CONFLICT (space, key) DO UPDATE SET fence = greatest(f.fence + 1, excluded.fence)
RETURNING fence, pg_backend_pid()
