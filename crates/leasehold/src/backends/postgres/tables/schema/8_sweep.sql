-- sweep, a bounded part of it: the next `p_most` names after `p_after`. Drops what has ended, and fence counters below
-- `p_fence` of unused names. Leaves a row that another verb has locked to that verb. Returns how many live leases and
-- tickets the names have, and the last of these names, null if there are no more.
CREATE OR REPLACE FUNCTION leasehold.sweep(
    p_after text, p_most integer, p_fence bigint, OUT o_now timestamptz, OUT o_last text,
    OUT o_expired bigint, OUT o_tickets bigint, OUT o_counters bigint, OUT o_held bigint, OUT o_waiting bigint
) LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    n leasehold.names%ROWTYPE;
    s record;
    due text[];
    idle text[];
    each text;
BEGIN
    PERFORM leasehold.check_session();
    o_now := clock_timestamp();
    o_expired := 0;
    o_tickets := 0;
    SELECT
        CASE WHEN count(*) = p_most THEN max(name) END, coalesce(sum(holders), 0), coalesce(sum(waiters), 0),
        array_agg(name ORDER BY name) FILTER (WHERE ended), array_agg(name) FILTER (WHERE NOT ended AND fence < p_fence
            AND holders = 0 AND waiters = 0 AND next_forget = 'infinity')
    INTO o_last, o_held, o_waiting, due, idle
    FROM (
        SELECT name, fence, holders, waiters, next_forget, (next_expiry <= o_now AND holders > 0)
            OR next_lapse <= o_now OR next_forget <= o_now AS ended
        FROM leasehold.names WHERE name > p_after ORDER BY name LIMIT p_most
    ) AS next;
    FOREACH each IN ARRAY coalesce(due, '{}') LOOP
        SELECT * INTO n FROM leasehold.names WHERE name = each FOR UPDATE SKIP LOCKED;
        CONTINUE WHEN NOT FOUND;
        SELECT * INTO s FROM leasehold.settle(n, o_now, '');
        n := s.n;
        o_expired := o_expired + s.p_leases;
        o_tickets := o_tickets + s.p_tickets;
        o_held := o_held - s.p_leases;
        o_waiting := o_waiting - s.p_tickets;
        IF s.p_leases > 0 THEN
            n.version := n.version + 1;
        END IF;
        PERFORM leasehold.close_name(n);
        IF n.waiters > 0 THEN
            PERFORM leasehold.wake(each, n.holders, n.mode);
        ELSIF n.holders = 0 AND n.next_forget = 'infinity' AND n.fence < p_fence THEN
            idle := idle || each;
        END IF;
    END LOOP;
    -- Leases may have come and ended since the count.
    o_held := greatest(o_held, 0);
    o_waiting := greatest(o_waiting, 0);
    WITH free AS (
        SELECT name FROM leasehold.names
        WHERE name = ANY (idle) AND holders = 0 AND waiters = 0 AND next_forget = 'infinity' AND fence < p_fence
        ORDER BY name FOR UPDATE SKIP LOCKED
    ), forgotten AS (
        DELETE FROM leasehold.names USING free WHERE names.name = free.name
        RETURNING names.name
    )
    SELECT count(*) INTO o_counters FROM forgotten;
END $$;
