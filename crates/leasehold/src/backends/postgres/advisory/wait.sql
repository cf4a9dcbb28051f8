-- Waits in the server's queue, in slices of less than a second. A statement that waits has a snapshot, and CREATE
-- INDEX CONCURRENTLY waits for the end of every older one: run under the lock itself, it would wait for ever. Each
-- slice is a transaction of its own, so vacuum is not held up either. At the end of a slice the session gives up its
-- place in the queue and takes a new one behind all others; slices differ in length, so that every waiter comes to the
-- front.
--
-- A slice is shorter than deadlock_timeout (1 s), so the server neither looks for deadlocks nor logs a long wait. Its
-- end is caught here, which keeps it out of the server's log. A cancel is not caught.
--
-- The server may grant the lock at the very moment when a slice ends. Then the slice fails, and the session has the
-- lock all the same; a second request would take it twice, and one unlock would not free it. So the end of each slice
-- asks for it without waiting. The answer is true only if the session has it or it is free; one unlock then takes back
-- what this has added, and if the session still has it, it is granted. (To look in pg_locks each time would cost too
-- much with a crowd.)
--
-- %LOCK%, %TRY% and %UNLOCK% are the functions with their key, %HELD% is the query for the lock, %TIMEOUT% the limit
-- of the session's later statements: the wait itself has no limit.
DO $$ BEGIN
    LOOP
        BEGIN
            PERFORM set_config('lock_timeout', (650 + 300 * random())::int::text, true);
            PERFORM %LOCK%;
            EXIT;
        EXCEPTION WHEN lock_not_available THEN
            IF %TRY% THEN
                PERFORM %UNLOCK%;
                EXIT WHEN EXISTS (%HELD%);
            END IF;
        END;
        COMMIT;
    END LOOP;
    PERFORM set_config('statement_timeout', '%TIMEOUT%', false), set_config('leasehold.granted', 'yes', false);
END $$
