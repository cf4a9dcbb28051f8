-- revoke: marks every lease, or ends it and refuses its id.
CREATE OR REPLACE FUNCTION leasehold.revoke(
    p_name text, p_at_once boolean, OUT o_leases bigint, OUT o_now timestamptz, OUT o_expired bigint
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
    o_leases := n.holders;
    IF p_at_once THEN
        FOR s IN SELECT id, ttl FROM leasehold.leases WHERE name = p_name AND n.holders > 0 LOOP
            n.next_forget := least(n.next_forget, leasehold.spend(p_name, s.id, s.ttl, 'revoked', o_now));
        END LOOP;
        DELETE FROM leasehold.shares WHERE name = p_name;
        n.holders := 0;
        n.next_expiry := 'infinity';
    ELSE
        n.revoked := true;
        UPDATE leasehold.shares SET revoked = true WHERE name = p_name AND NOT revoked;
    END IF;
    IF o_leases > 0 OR dropped THEN
        n.version := n.version + 1;
    END IF;
    PERFORM leasehold.close_name(n);
    IF n.waiters > 0 THEN
        PERFORM leasehold.wake(p_name, n.holders, n.mode);
    END IF;
END $$;
