-- sweep, a bounded part of it: the names of at most `p_most` leases, tickets and refused ids that have ended, in
-- the order of names. Those that somebody works on at the moment are left to that verb. `o_more`: something was
-- done, and not everything has been seen.
CREATE OR REPLACE FUNCTION leasehold.sweep(
    p_most integer, OUT o_more boolean, OUT o_leases bigint, OUT o_tickets bigint, OUT o_now timestamptz
) LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    n leasehold.names%ROWTYPE;
    s record;
    due text;
    last text := '';
    seen integer := 0;
BEGIN
    PERFORM leasehold.check_session();
    o_more := false;
    o_leases := 0;
    o_tickets := 0;
    o_now := clock_timestamp();
    FOR due IN
        SELECT name FROM (
            (SELECT name FROM leasehold.leases WHERE expires <= o_now ORDER BY expires LIMIT p_most)
            UNION ALL (SELECT name FROM leasehold.tickets WHERE lapses <= o_now ORDER BY lapses LIMIT p_most)
            UNION ALL (SELECT name FROM leasehold.spent WHERE until <= o_now ORDER BY until LIMIT p_most)
        ) AS ended ORDER BY name
    LOOP
        seen := seen + 1;
        CONTINUE WHEN due = last;
        last := due;
        SELECT * INTO n FROM leasehold.names WHERE name = due FOR UPDATE SKIP LOCKED;
        CONTINUE WHEN NOT FOUND;
        SELECT * INTO s FROM leasehold.settle(n, o_now, '');
        n := s.n;
        o_more := true;
        o_leases := o_leases + s.p_leases;
        o_tickets := o_tickets + s.p_tickets;
        IF s.p_leases > 0 THEN
            n.version := n.version + 1;
        END IF;
        PERFORM leasehold.close_name(n);
        IF n.waiters > 0 THEN
            PERFORM leasehold.wake(due, n.holders, n.mode);
        END IF;
    END LOOP;
    o_more := o_more AND seen >= p_most;
END $$;

-- Forgets fence counters below `p_fence` of names that nobody uses, among the next `p_most` names after `p_after`.
CREATE OR REPLACE FUNCTION leasehold.forget(
    p_after text, p_most integer, p_fence bigint, OUT o_last text, OUT o_counters bigint
) LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    PERFORM leasehold.check_session();
    SELECT max(name) INTO o_last
    FROM (SELECT name FROM leasehold.names WHERE name > p_after ORDER BY name LIMIT p_most) AS next;
    WITH idle AS (
        SELECT name FROM leasehold.names
        WHERE name > p_after AND name <= o_last AND fence < p_fence
            AND holders = 0 AND waiters = 0 AND next_forget = 'infinity'
        ORDER BY name FOR UPDATE SKIP LOCKED
    ), forgotten AS (
        DELETE FROM leasehold.names USING idle WHERE names.name = idle.name
        RETURNING names.name
    )
    SELECT count(*) INTO o_counters FROM forgotten;
END $$;
