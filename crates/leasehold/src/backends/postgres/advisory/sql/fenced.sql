-- Takes the lock and, only if it was granted, the next fence: in one round trip. A crash between the two frees the lock,
-- and at most skips a number. %LOCK% is the function with its key, or whether a wait before has got it; %KEY% the key as
-- one number, %SPACE% its space, %SCHEMA% the quoted schema, %AHEAD% how far fences are reserved.
--
-- `kept` may be older than the lock, which is taken later: then more is reserved than need be. And where `live` has
-- no row nobody can have given out a fence meanwhile, so `kept` is right when it decides.
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
