-- $1 the name
WITH clock AS MATERIALIZED (SELECT clock_timestamp() AS now), wanted AS (
    SELECT $1::text COLLATE "C" AS name, false AS reached, '' AS asked
)
