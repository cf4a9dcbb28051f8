-- Raises the counter of a key to at least $3. $1: its space, $2: the key as one number.
WITH live AS (
    INSERT INTO %SCHEMA%.advisory_fences_live AS f (space, key, fence, clock) VALUES ($1, $2, $3, $3)
    ON CONFLICT (space, key) DO UPDATE SET fence = greatest(f.fence, excluded.fence)
    RETURNING fence
)
INSERT INTO %SCHEMA%.advisory_fences AS f (space, key, fence) SELECT $1, $2, fence FROM live
ON CONFLICT (space, key) DO UPDATE SET fence = greatest(f.fence, excluded.fence)
