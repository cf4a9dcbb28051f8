-- Refuses stale fences in every row that is inserted into {table} or updated there: the resource is {resource}.
-- Printed by `leasehold fences sql --dialect sqlite --table …`. It needs the view that the same command prints without
-- `--table`.
--
-- Every INSERT and UPDATE must set the column `fence`. One that leaves it as it is counts as a write with the stored
-- fence. For a DELETE, call check_fence in the same transaction. An UPDATE of a key is checked for the new one.
--
-- If the column is not there yet: ALTER TABLE {table} ADD COLUMN fence INTEGER;

BEGIN IMMEDIATE;

DROP TRIGGER IF EXISTS {insert_trigger};
DROP TRIGGER IF EXISTS {update_trigger};

CREATE TRIGGER {insert_trigger} AFTER INSERT ON {table}
BEGIN
    INSERT INTO check_fence (resource, fence) VALUES ({expression}, NEW.fence);
END;

CREATE TRIGGER {update_trigger} AFTER UPDATE ON {table}
BEGIN
    INSERT INTO check_fence (resource, fence) VALUES ({expression}, NEW.fence);
END;

COMMIT;
