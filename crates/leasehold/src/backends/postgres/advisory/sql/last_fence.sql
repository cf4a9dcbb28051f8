-- The last fence of a key; after a crash, the highest it can have been. $1: its space, $2: the key as one number.
SELECT fence FROM (
    SELECT fence, 1 AS source FROM %SCHEMA%.advisory_fences_live WHERE space = $1 AND key = $2
    UNION ALL
    SELECT fence, 2 FROM %SCHEMA%.advisory_fences WHERE space = $1 AND key = $2
) AS known ORDER BY source LIMIT 1
