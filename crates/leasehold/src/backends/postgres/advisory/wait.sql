-- Waits in the server's queue, in slices of less than a second. A statement that waits has a snapshot, and CREATE INDEX
-- CONCURRENTLY waits for the end of every older one: under the lock itself, it would wait for ever. Each slice is a
-- transaction of its own, so vacuum is not held up either. At the end of a slice the place in the queue is given up and
-- the next one taken behind all others; slices differ in length, so that all come to the front.
--
-- Shorter than deadlock_timeout (1 s), a slice makes the server neither look for deadlocks nor log a long wait. That its
-- end is caught here keeps it out of the server's log. A cancel is not caught.
--
-- The server may grant the lock in the moment in which a slice ends. Then the slice fails, and the session has the lock all
-- the same; asked for once more it would have it twice, and one unlock would free it for nobody. So the end of each slice
-- asks for it without waiting. That is true only if the session has it or it is free; one unlock takes back what this has
-- added, and if the session has it still, it is granted. (To look in pg_locks each time would cost too much with a crowd.)
--
-- %LOCK%, %TRY% and %UNLOCK% are the functions with their key, %HELD% is the look for it, %TIMEOUT% what statements of the
-- session may take from here on: the wait itself has no limit.
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
