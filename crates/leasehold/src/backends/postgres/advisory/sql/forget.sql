-- Forgets counters that the clock has passed by more than $1: it alone gives a higher fence.
DELETE FROM %SCHEMA%.%TABLE% WHERE fence < %CLOCK% - $1 RETURNING 1
