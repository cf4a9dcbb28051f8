-- Fences for PostgreSQL 11 or newer: refuses writers that have lost their lock.
-- Printed by `leasehold fences sql --dialect postgres`. Run it once, in the schema of the tables it protects.
--
-- In each transaction that writes, before the first write:
--     SELECT check_fence('report', 459475822995008);
-- It compares the fence with the highest that the resource `report` has seen, and remembers it if it is higher. An
-- equal fence passes: the same holder writes again. A lower one fails with SQLSTATE LF001, and the transaction with it.
-- Other writers of the resource wait until this transaction ends, so check and write are one step.
--
-- Writers need the rights SELECT, INSERT and UPDATE on the table `fences`.
--
-- Only exclusive holders may call it: readers and permit holders are inside together, and would refuse each other.
-- A trigger that does this for every row: `leasehold fences sql --dialect postgres --table report`.

BEGIN;

CREATE TABLE IF NOT EXISTS fences (
    -- What is protected: the name of the lock, or one of your own.
    resource text COLLATE "C" PRIMARY KEY,
    -- The highest fence that it has seen. As text: to_char(fence, 'FM000000000000000').
    fence    bigint NOT NULL CHECK (fence BETWEEN 1 AND 900000000000000)
);

CREATE OR REPLACE FUNCTION check_fence(given_resource text, given_fence bigint) RETURNS void
LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
DECLARE
    highest bigint;
BEGIN
    IF given_resource IS NULL OR given_fence IS NULL OR given_fence NOT BETWEEN 1 AND 900000000000000 THEN
        RAISE EXCEPTION 'no valid fence % for resource %', coalesce(given_fence::text, 'null'),
            coalesce(quote_literal(given_resource), 'null')
            USING ERRCODE = 'LF002', HINT = 'Pass the fence of the lock that this transaction writes under.';
    END IF;
    -- Locks the row until the transaction ends.
    INSERT INTO fences AS mark (resource, fence) VALUES (given_resource, given_fence)
    ON CONFLICT (resource) DO UPDATE SET fence = greatest(mark.fence, excluded.fence)
    RETURNING mark.fence INTO highest;
    IF highest > given_fence THEN
        RAISE EXCEPTION 'stale fence % for resource %: the highest seen is %', given_fence,
            quote_literal(given_resource), highest
            USING ERRCODE = 'LF001', HINT = 'The writer has lost its lock. Roll back, and stop work that needs it.';
    END IF;
END;
$$;

-- For triggers. The first argument is the resource; with a second one, the name of a column, the resource is the first,
-- a slash and the value of that column.
CREATE OR REPLACE FUNCTION check_fence_of_row() RETURNS trigger
LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
DECLARE
    written jsonb := to_jsonb(NEW);
BEGIN
    PERFORM check_fence(
        TG_ARGV[0] || CASE WHEN TG_NARGS > 1 THEN '/' || (written ->> TG_ARGV[1]) ELSE '' END,
        (written ->> 'fence')::bigint);
    RETURN NEW;
END;
$$;

COMMIT;
