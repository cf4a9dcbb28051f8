-- Refuses stale fences in every row that is inserted into {table} or updated there: the resource is {resource}.
-- Printed by `leasehold fences sql --dialect postgres --table …`. It needs the functions that the same command prints
-- without `--table`.
--
-- Every INSERT and UPDATE must set the column `fence`. One that leaves it as it is counts as a write with the stored
-- fence. For a DELETE, call check_fence in the same transaction. An UPDATE of a key is checked for the new one.
--
-- If the column is not there yet: ALTER TABLE {table} ADD COLUMN fence bigint;

BEGIN;

DROP TRIGGER IF EXISTS check_fence ON {table};
CREATE TRIGGER check_fence BEFORE INSERT OR UPDATE ON {table}
FOR EACH ROW EXECUTE FUNCTION check_fence_of_row({arguments});

COMMIT;
