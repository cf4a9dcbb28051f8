-- Raises the counter of a key to at least $3. $1: its space, $2: the key as one number. Not further than $4 ahead of the
-- clock, or one above the last fence: then there is no row.
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
