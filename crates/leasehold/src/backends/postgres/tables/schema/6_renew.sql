-- renew: one lease of a batch, whose row is locked. The numbers are those of docs/contract.md. The answer is one of
-- held, expired, not_found, superseded, revoked, too_high, mismatch.
CREATE OR REPLACE FUNCTION leasehold.renew_one(
    p_name text, p_id text, p_ttl bigint, p_fence bigint, p_owner text, p_shorten bigint, p_mode text,
    p_permits bigint, p_raise bigint, p_now timestamptz,
    OUT o_answer text, OUT o_mode text, OUT o_permits bigint, OUT o_fence bigint, OUT o_renewals bigint,
    OUT o_granted_at timestamptz, OUT o_expires timestamptz, OUT o_expired bigint
) LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    n leasehold.names%ROWTYPE;
    l leasehold.leases%ROWTYPE;
    s record;
    had boolean := false;
    dropped boolean := false;
    changed boolean := false;
BEGIN
    SELECT * INTO n FROM leasehold.names WHERE name = p_name; -- locked
    IF n.next_expiry <= p_now OR n.next_lapse <= p_now OR n.next_forget <= p_now THEN
        SELECT * INTO s FROM leasehold.settle(n, p_now, p_id);
        n := s.n;
        had := s.p_had;
        dropped := s.p_leases > 0;
        o_expired := s.p_leases;
        changed := true;
    END IF;

    <<act>>
    BEGIN
        IF n.holders > 0 AND (n.mode <> 'exclusive' OR n.id = p_id) THEN
            SELECT * INTO l FROM leasehold.leases WHERE name = p_name AND id = p_id;
        END IF;
        -- 1. No such lease.
        IF l.id IS NULL THEN
            SELECT why INTO o_answer FROM leasehold.spent WHERE name = p_name AND id = p_id;
            o_answer := coalesce(o_answer, CASE WHEN had THEN 'expired' ELSE 'not_found' END);
            EXIT act;
        END IF;
        -- 2. Fence or owner do not match.
        IF l.fence <> p_fence OR l.owner <> p_owner THEN
            o_answer := 'not_found';
            EXIT act;
        END IF;
        -- 3. It was revoked.
        IF l.revoked THEN
            o_answer := 'revoked';
            EXIT act;
        END IF;
        -- 4. At most a day ahead of the clock, or as far as a grant would go.
        IF p_raise > least(greatest(n.fence + 1, leasehold.clock_fence(p_now) + 22118400000), 900000000000000) THEN
            o_answer := 'too_high';
            EXIT act;
        END IF;
        IF l.fence > p_raise THEN
            o_answer := 'superseded';
            EXIT act;
        END IF;
        -- 5. The mode stays, or changes from exclusive to shared.
        IF (l.mode <> p_mode OR l.permits IS DISTINCT FROM p_permits) AND p_mode IS NOT NULL
            AND NOT (l.mode = 'exclusive' AND p_mode = 'shared')
        THEN
            o_answer := 'mismatch';
            EXIT act;
        END IF;
        o_answer := 'held';
        -- 6. Nothing changes if it was renewed since. 7. Otherwise it is renewed.
        IF p_shorten IS NULL OR p_shorten = l.renewals THEN
            l.mode := coalesce(p_mode, l.mode);
            l.fence := coalesce(p_raise, l.fence);
            l.ttl := greatest(l.ttl, p_ttl);
            -- A clock that was set back may have left an expiry that is later than any client asked for.
            l.expires := CASE WHEN p_shorten IS NULL
                THEN least(greatest(l.expires, p_now + p_ttl * interval '1 microsecond'),
                    p_now + l.ttl * interval '1 microsecond')
                ELSE p_now + p_ttl * interval '1 microsecond' END;
            l.renewals := l.renewals + 1;
            IF n.mode <> 'exclusive' THEN
                UPDATE leasehold.shares SET
                    fence = l.fence, expires = l.expires, ttl = l.ttl, renewals = l.renewals
                WHERE name = p_name AND id = p_id;
                n.next_expiry := least(n.next_expiry, l.expires);
            ELSE
                -- A lease that becomes shared moves to the other table.
                IF l.mode <> 'exclusive' THEN
                    INSERT INTO leasehold.shares SELECT l.*;
                END IF;
                n.ttl := l.ttl;
                n.renewals := l.renewals;
                n.next_expiry := l.expires;
            END IF;
            n.mode := l.mode;
            n.fence := greatest(n.fence, p_raise);
            n.version := n.version + 1;
            dropped := false; -- counted with the renewal
            changed := true;
        END IF;
        o_mode := l.mode;
        o_permits := l.permits;
        o_fence := l.fence;
        o_renewals := l.renewals;
        o_granted_at := l.granted_at;
        o_expires := l.expires;
    END;

    IF dropped THEN
        n.version := n.version + 1;
    END IF;
    IF changed THEN
        PERFORM leasehold.close_name(n);
    END IF;
    IF n.waiters > 0 AND NOT (n.holders = 1 AND n.mode = 'exclusive') THEN
        PERFORM leasehold.wake(p_name, n.holders, n.mode);
    END IF;
END $$;

-- A batch: locks the names in their order, then reads the clock. It does not wait for a row that another session has
-- locked, because one stuck row would hold up all the others: that lease is answered `busy`, and the client locks the
-- row before it asks again (`renew_waiting`). Older clients ask for that lease alone: alone it waits at most this many
-- milliseconds; with 1 it does not wait either.
CREATE OR REPLACE FUNCTION leasehold.renew(
    p_names text[], p_ids text[], p_ttls bigint[], p_fences bigint[], p_owners text[], p_shorten bigint[],
    p_modes text[], p_permits bigint[], p_raise bigint[], p_patience integer
) RETURNS TABLE (
    o_now timestamptz, o_answer text, o_mode text, o_permits bigint, o_fence bigint, o_renewals bigint,
    o_granted_at timestamptz, o_expires timestamptz, o_expired bigint
) LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    r record;
    locked boolean[] := array_fill(false, ARRAY[cardinality(p_names)]);
BEGIN
    PERFORM leasehold.check_session();
    IF cardinality(p_names) > 1 THEN
        FOR r IN
            SELECT w.place FROM unnest(p_names) WITH ORDINALITY AS w (name, place) JOIN leasehold.names AS n USING (name)
            ORDER BY n.name FOR UPDATE OF n SKIP LOCKED
        LOOP
            locked[r.place] := true;
        END LOOP;
    ELSIF p_patience = 1 THEN
        PERFORM 1 FROM leasehold.names WHERE name = p_names[1] FOR UPDATE SKIP LOCKED;
        locked[1] := FOUND;
    ELSE
        PERFORM set_config('lock_timeout', p_patience::text, true);
        PERFORM 1 FROM leasehold.names WHERE name = p_names[1] FOR UPDATE;
        locked[1] := FOUND;
    END IF;
    o_now := clock_timestamp();
    FOR i IN 1 .. cardinality(p_names) LOOP
        IF locked[i] THEN
            SELECT * INTO r FROM leasehold.renew_one(
                p_names[i], p_ids[i], p_ttls[i], p_fences[i], p_owners[i], p_shorten[i], p_modes[i], p_permits[i],
                p_raise[i], o_now);
            o_answer := r.o_answer;
            o_mode := r.o_mode;
            o_permits := r.o_permits;
            o_fence := r.o_fence;
            o_renewals := r.o_renewals;
            o_granted_at := r.o_granted_at;
            o_expires := r.o_expires;
            o_expired := r.o_expired;
        ELSE
            PERFORM 1 FROM leasehold.names WHERE name = p_names[i];
            o_answer := CASE WHEN FOUND THEN 'busy' ELSE 'not_found' END;
            o_expired := NULL;
        END IF;
        RETURN NEXT;
    END LOOP;
END $$;
