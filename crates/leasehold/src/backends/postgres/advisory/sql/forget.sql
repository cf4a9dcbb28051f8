-- Forgets counters that the clock has passed by more than $1: it alone gives a higher fence. Looks at $4 of them, those
-- after the key $2, $3; answers how many that were, how many are gone, and the last key.
WITH part AS MATERIALIZED (
    SELECT space, key FROM %SCHEMA%.%TABLE% WHERE (space, key) > ($2, $3) ORDER BY space, key LIMIT $4
), gone AS (
    DELETE FROM %SCHEMA%.%TABLE% AS f USING part
    WHERE f.space = part.space AND f.key = part.key AND f.fence < %CLOCK% - $1
    RETURNING 1
)
SELECT (SELECT count(*) FROM part), (SELECT count(*) FROM gone), space, key FROM part ORDER BY space DESC, key DESC LIMIT 1
