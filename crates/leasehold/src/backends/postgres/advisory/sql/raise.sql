-- Raises the counter of a key to at least $3. $1: its space, $2: the key as one number.
INSERT INTO %SCHEMA%.advisory_fences AS f (space, key, fence) VALUES ($1, $2, $3)
ON CONFLICT (space, key) DO UPDATE SET fence = greatest(f.fence, excluded.fence)
