-- revoke: marks every lease, or ends it and refuses its id. With a fence it affects only the lease that has it.
CREATE OR REPLACE FUNCTION leasehold.revoke_only(
    p_name text, p_at_once boolean, p_fence bigint, OUT o_leases bigint, OUT o_now timestamptz, OUT o_expired bigint
) LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    n leasehold.names%ROWTYPE;
    s record;
    dropped boolean := false;
BEGIN
    n := leasehold.open_name(p_name);
    o_now := clock_timestamp();
    IF n.next_expiry <= o_now OR n.next_lapse <= o_now OR n.next_forget <= o_now THEN
        SELECT * INTO s FROM leasehold.settle(n, o_now, '');
        n := s.n;
        dropped := s.p_leases > 0;
        o_expired := s.p_leases;
    END IF;
    o_leases := 0;
    FOR s IN
        SELECT id, ttl FROM leasehold.leases
        WHERE name = p_name AND n.holders > 0 AND (p_fence IS NULL OR fence = p_fence)
    LOOP
        o_leases := o_leases + 1;
        IF p_at_once THEN
            n.next_forget := least(n.next_forget, leasehold.spend(p_name, s.id, s.ttl, 'revoked', o_now));
        END IF;
    END LOOP;
    IF o_leases > 0 THEN
        IF NOT p_at_once THEN
            n.revoked := n.revoked OR n.mode = 'exclusive';
            UPDATE leasehold.shares SET revoked = true
            WHERE name = p_name AND NOT revoked AND (p_fence IS NULL OR fence = p_fence);
        ELSE
            DELETE FROM leasehold.shares WHERE name = p_name AND (p_fence IS NULL OR fence = p_fence);
            n.holders := n.holders - o_leases;
            IF n.holders = 0 THEN
                n.next_expiry := 'infinity';
            END IF;
        END IF;
    END IF;
    IF o_leases > 0 OR dropped THEN
        n.version := n.version + 1;
    END IF;
    PERFORM leasehold.close_name(n);
    IF n.waiters > 0 AND NOT (n.holders = 1 AND n.mode = 'exclusive') THEN
        PERFORM leasehold.wake(p_name, n.holders, n.mode);
    END IF;
END $$;

-- For clients that revoke every lease.
CREATE OR REPLACE FUNCTION leasehold.revoke(
    p_name text, p_at_once boolean, OUT o_leases bigint, OUT o_now timestamptz, OUT o_expired bigint
) LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    SELECT * INTO o_leases, o_now, o_expired FROM leasehold.revoke_only(p_name, p_at_once, NULL);
END $$;
