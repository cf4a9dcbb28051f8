-- Fences for SQLite 3.47 or newer: refuses writers that have lost their lock.
-- Printed by `leasehold fences sql --dialect sqlite`. Run it once, in the database of the tables it protects.
--
-- In each transaction that writes, after BEGIN IMMEDIATE and before the first write:
--     INSERT INTO check_fence (resource, fence) VALUES ('report', 459475822995008);
-- It compares the fence with the highest that the resource `report` has seen, and remembers it if it is higher. An
-- equal fence passes: the same holder writes again. A lower one fails with a constraint error: roll back then. No other
-- connection writes until the transaction ends, so check and write are one step.
--
-- Only exclusive holders may do this: readers and permit holders are inside together, and would refuse each other.
-- A trigger that does it for every row: `leasehold fences sql --dialect sqlite --table report`.

BEGIN IMMEDIATE;

CREATE TABLE IF NOT EXISTS fences (
    -- What is protected: the name of the lock, or one of your own.
    resource TEXT NOT NULL PRIMARY KEY,
    -- The highest fence that it has seen. As text: printf('%015d', fence).
    fence    INTEGER NOT NULL CHECK (fence BETWEEN 1 AND 900000000000000)
) STRICT, WITHOUT ROWID;

-- SQLite has no procedures; inserting into this view is the call.
DROP VIEW IF EXISTS check_fence;
CREATE VIEW check_fence (resource, fence) AS SELECT resource, fence FROM fences;

CREATE TRIGGER check_fence_call INSTEAD OF INSERT ON check_fence
BEGIN
    -- A fence may be a number, or the same as text, of digits only.
    SELECT RAISE(ABORT, 'no valid fence ' || iif(NEW.fence IS NULL, 'null', quote(NEW.fence)) || ' for resource ' ||
        iif(NEW.resource IS NULL, 'null', quote(NEW.resource)))
    WHERE NEW.resource IS NULL OR typeof(NEW.resource) <> 'text' OR NEW.fence IS NULL
        OR typeof(NEW.fence) NOT IN ('integer', 'text') OR NEW.fence GLOB '*[^0-9]*'
        OR CAST(NEW.fence AS INTEGER) NOT BETWEEN 1 AND 900000000000000;
    SELECT RAISE(ABORT, 'stale fence ' || CAST(NEW.fence AS INTEGER) || ' for resource ' || quote(NEW.resource) ||
        ': the highest seen is ' || fence)
    FROM fences WHERE resource = NEW.resource AND fence > CAST(NEW.fence AS INTEGER);
    INSERT INTO fences (resource, fence) VALUES (NEW.resource, CAST(NEW.fence AS INTEGER))
    ON CONFLICT (resource) DO UPDATE SET fence = excluded.fence;
END;

COMMIT;
