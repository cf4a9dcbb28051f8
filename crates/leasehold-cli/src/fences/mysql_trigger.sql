-- Refuses stale fences in every row that is inserted into {table} or updated there: the resource is {resource}.
-- Printed by `leasehold fences sql --dialect mysql --table …`. It needs the procedure that the same command prints
-- without `--table`. The table must use InnoDB.
--
-- Every INSERT and UPDATE must set the column `fence`. One that leaves it as it is counts as a write with the stored
-- fence. For a DELETE, call check_fence in the same transaction. An UPDATE of a key is checked for the new one.
--
-- If the column is not there yet: ALTER TABLE {table} ADD COLUMN fence BIGINT;

DROP TRIGGER IF EXISTS {insert_trigger};
DROP TRIGGER IF EXISTS {update_trigger};

CREATE TRIGGER {insert_trigger} AFTER INSERT ON {table}
FOR EACH ROW CALL check_fence({expression}, NEW.fence);

CREATE TRIGGER {update_trigger} AFTER UPDATE ON {table}
FOR EACH ROW CALL check_fence({expression}, NEW.fence);
