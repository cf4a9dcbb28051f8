-- Wakes every ticket that is let in and not woken yet: the last step of every verb, if any ticket waits. It looks at
-- 128 tickets at most, and stops at the first that must wait, so the cost does not depend on how many wait. A client
-- that listens gets the wake numbers of its waiters. NOTIFY takes a lock that all of the server's databases share, so
-- it is sent only if there is a waiter to wake.
CREATE OR REPLACE FUNCTION leasehold.wake(p_name text, p_holders bigint, p_mode text) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    inside bigint := p_holders;
    alone boolean := p_holders = 1 AND p_mode = 'exclusive';
    fresh bigint[] := '{}';
    t record;
BEGIN
    FOR t IN SELECT arrival, mode, permits, tickets.woken FROM leasehold.tickets
        WHERE name = p_name ORDER BY arrival LIMIT 128
    LOOP
        EXIT WHEN NOT CASE t.mode
            WHEN 'exclusive' THEN inside = 0 WHEN 'shared' THEN NOT alone ELSE inside < t.permits END;
        inside := inside + 1;
        alone := alone OR t.mode = 'exclusive';
        IF NOT t.woken THEN
            fresh := fresh || t.arrival;
        END IF;
    END LOOP;
    IF fresh <> '{}' THEN
        WITH told AS (
            UPDATE leasehold.tickets SET woken = true
            WHERE name = p_name AND arrival = ANY (fresh) RETURNING channel, wake
        )
        SELECT count(pg_notify(channel, numbers)) INTO inside
        FROM (SELECT channel, string_agg(wake::text, ' ') AS numbers FROM told
              WHERE channel IS NOT NULL GROUP BY channel) AS listeners;
    END IF;
END $$;
