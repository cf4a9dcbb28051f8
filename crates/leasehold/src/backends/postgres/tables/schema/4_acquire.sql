-- try_acquire. The numbers are those of docs/contract.md.
-- The answer is one of granted, held, busy, superseded, mismatch, other_mode, overflow.
CREATE OR REPLACE FUNCTION leasehold.acquire_in_full(
    p_name text, p_id text, p_mode text, p_permits bigint, p_ttl bigint, p_owner text, p_metadata text,
    p_queue bigint, p_repeat boolean, p_nonce bigint, p_first boolean, p_channel text, p_wake bigint
) RETURNS record LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    a leasehold.attempt;
    o_now timestamptz;
    n leasehold.names%ROWTYPE;
    l leasehold.leases%ROWTYPE;
    t leasehold.tickets%ROWTYPE;
    s record;
    inside bigint;
    alone boolean;
    enters boolean;
    settled boolean := false; -- something may have ended
    dropped boolean := false; -- a lease has
    changed boolean := false; -- the name's row has to be written
BEGIN
    -- Does what check_session does, if necessary.
    IF current_setting('transaction_isolation') <> 'read committed' OR current_setting('enable_seqscan') = 'on' THEN
        PERFORM leasehold.check_session();
    END IF;
    SELECT * INTO n FROM leasehold.names WHERE name = p_name FOR UPDATE;
    IF NOT FOUND THEN
        n := leasehold.open_name(p_name);
    END IF;
    o_now := clock_timestamp();
    a.now := o_now;
    IF n.next_expiry <= o_now OR n.next_lapse <= o_now OR n.next_forget <= o_now THEN
        SELECT * INTO s FROM leasehold.settle(n, o_now, p_id);
        n := s.n;
        settled := true;
        dropped := s.p_leases > 0;
        a.expired := s.p_leases;
        changed := true;
    END IF;

    <<act>>
    BEGIN
        -- 1. The id is spent.
        IF n.next_forget < 'infinity' THEN
            PERFORM 1 FROM leasehold.spent WHERE name = p_name AND id = p_id;
            IF FOUND THEN
                a.answer := 'superseded';
                EXIT act;
            END IF;
        END IF;
        -- 2. The name is in use as another kind.
        IF (n.holders > 0 OR n.waiters > 0) AND n.permits IS DISTINCT FROM p_permits THEN
            a.answer := 'mismatch';
            a.mode := n.mode;
            a.permits := n.permits;
            EXIT act;
        END IF;
        -- 3. The id has a lease.
        IF n.holders > 0 AND (n.mode <> 'exclusive' OR n.id = p_id) THEN
            SELECT * INTO l FROM leasehold.leases WHERE name = p_name AND id = p_id;
            IF FOUND THEN
                IF NOT p_first AND l.nonce <> p_nonce THEN
                    a.answer := 'superseded';
                    EXIT act;
                END IF;
                IF l.nonce <> p_nonce OR (p_repeat AND NOT l.repeated) THEN
                    IF n.mode = 'exclusive' THEN
                        n.nonce := p_nonce;
                        n.repeated := n.repeated OR p_repeat;
                        changed := true;
                    ELSE
                        UPDATE leasehold.shares SET nonce = p_nonce, repeated = repeated OR p_repeat
                        WHERE name = p_name AND id = p_id;
                    END IF;
                END IF;
                a.answer := 'held';
                a.mode := l.mode;
                a.permits := l.permits;
                a.fence := l.fence;
                a.renewals := l.renewals;
                a.granted_at := l.granted_at;
                a.expires := l.expires;
                EXIT act;
            END IF;
        END IF;
        -- 4. The id has a ticket.
        IF n.waiters > 0 THEN
            SELECT * INTO t FROM leasehold.tickets WHERE id = p_id AND name = p_name;
            IF FOUND THEN
                IF NOT p_first AND t.nonce <> p_nonce THEN
                    a.answer := 'superseded';
                    EXIT act;
                END IF;
                IF t.mode <> p_mode THEN
                    a.answer := 'other_mode';
                    EXIT act;
                END IF;
            END IF;
        END IF;
        -- 5. May it enter?
        inside := n.holders;
        alone := n.holders = 1 AND n.mode = 'exclusive';
        IF n.waiters = 0 THEN
            enters := NULL;
        ELSIF alone OR (t.id IS NULL AND (p_queue IS NULL OR n.waiters >= 128)) THEN
            enters := false;
        ELSE
            FOR s IN SELECT arrival, mode, permits FROM leasehold.tickets
                WHERE name = p_name ORDER BY arrival LIMIT 128
            LOOP
                enters := CASE s.mode
                    WHEN 'exclusive' THEN inside = 0 WHEN 'shared' THEN NOT alone ELSE inside < s.permits END;
                EXIT WHEN NOT enters OR s.arrival = t.arrival;
                inside := inside + 1;
                alone := alone OR s.mode = 'exclusive';
                -- Behind all of these: it is not one of the first 128, or would be the last of the queue.
                enters := CASE WHEN t.id IS NULL THEN NULL ELSE false END;
            END LOOP;
        END IF;
        IF enters IS NULL THEN
            enters := CASE p_mode
                WHEN 'exclusive' THEN inside = 0 WHEN 'shared' THEN NOT alone ELSE inside < p_permits END;
        END IF;
        IF enters THEN
            a.fence := greatest(n.fence + 1, leasehold.clock_fence(o_now));
            IF a.fence > 900000000000000 THEN
                a.answer := 'overflow';
                EXIT act;
            END IF;
            a.answer := 'granted';
            a.expires := o_now + p_ttl * interval '1 microsecond';
            IF p_mode = 'exclusive' THEN
                n.id := p_id;
                n.owner := p_owner;
                n.metadata := p_metadata;
                n.ttl := p_ttl;
                n.granted_at := o_now;
                n.renewals := 0;
                n.nonce := p_nonce;
                n.repeated := p_repeat OR coalesce(t.repeated, false);
                n.revoked := false;
            ELSE
                INSERT INTO leasehold.shares VALUES (
                    p_name, p_id, p_mode, p_permits, a.fence, a.fence, p_owner, p_metadata, p_ttl, o_now, a.expires,
                    0, p_nonce, p_repeat OR coalesce(t.repeated, false), false
                );
            END IF;
            IF t.id IS NOT NULL THEN
                DELETE FROM leasehold.tickets WHERE name = p_name AND arrival = t.arrival;
                n.waiters := n.waiters - 1;
                IF n.waiters = 0 THEN
                    n.next_lapse := 'infinity';
                END IF;
            END IF;
            n.fence := a.fence;
            n.version := n.version + 1;
            n.mode := p_mode;
            n.permits := p_permits;
            n.holders := n.holders + 1;
            n.next_expiry := CASE WHEN n.holders = 1 THEN a.expires ELSE least(n.next_expiry, a.expires) END;
            dropped := false; -- counted with the grant
            changed := true;
            EXIT act;
        END IF;
        -- 6. It may not.
        a.answer := 'busy';
        IF p_queue IS NULL THEN
            IF t.id IS NOT NULL AND (t.nonce <> p_nonce OR (p_repeat AND NOT t.repeated)) THEN
                UPDATE leasehold.tickets SET nonce = p_nonce, repeated = repeated OR p_repeat
                WHERE name = p_name AND arrival = t.arrival;
            END IF;
        ELSE
            a.next_lapse := o_now + p_queue * interval '1 microsecond';
            IF t.id IS NOT NULL THEN
                UPDATE leasehold.tickets SET
                    lapses = a.next_lapse, nonce = p_nonce, repeated = repeated OR p_repeat,
                    channel = p_channel, wake = p_wake
                WHERE name = p_name AND arrival = t.arrival;
            ELSE
                IF n.holders = 0 AND n.waiters = 0 THEN
                    n.mode := p_mode; -- a semaphore without any permits
                    n.permits := p_permits;
                END IF;
                n.arrivals := n.arrivals + 1;
                n.waiters := n.waiters + 1;
                t.arrival := n.arrivals;
                changed := true;
                INSERT INTO leasehold.tickets (
                    name, arrival, id, mode, permits, owner, ttl, joined, lapses, nonce, repeated, channel, wake
                ) VALUES (
                    p_name, t.arrival, p_id, p_mode, p_permits, p_owner, p_ttl, o_now, a.next_lapse, p_nonce,
                    p_repeat, p_channel, p_wake
                );
            END IF;
            IF a.next_lapse < n.next_lapse THEN
                n.next_lapse := a.next_lapse;
                changed := true;
            END IF;
        END IF;
        IF t.arrival IS NULL THEN
            a.place := NULL;
        ELSIF t.arrival = n.arrivals THEN
            a.place := n.waiters - 1;
        ELSE
            SELECT count(*) INTO a.place FROM leasehold.tickets WHERE name = p_name AND arrival < t.arrival;
        END IF;
        a.waiters := n.waiters;
        a.next_lapse := nullif(n.next_lapse, 'infinity');
        -- A blocked permit waits for the first lease to end, other modes for the last.
        IF n.holders = 0 THEN
            NULL; -- a semaphore without any permits, or another waiter's turn
        ELSIF n.mode = 'exclusive' THEN
            a.owner := n.owner;
            a.expires := n.next_expiry;
            a.ttl := n.ttl;
        ELSIF n.mode = 'shared' THEN
            SELECT owner, expires, ttl INTO a.owner, a.expires, a.ttl
            FROM leasehold.shares WHERE name = p_name ORDER BY expires DESC, granted DESC LIMIT 1;
        ELSE
            SELECT owner, expires, ttl INTO a.owner, a.expires, a.ttl
            FROM leasehold.shares WHERE name = p_name ORDER BY expires, granted LIMIT 1;
        END IF;
        -- A place in the queue need not be on disk before the answer: a waiter that lost it in a crash joins again.
        IF NOT p_repeat AND NOT settled THEN
            PERFORM set_config('synchronous_commit', 'off', true);
        END IF;
    END;

    IF dropped THEN
        n.version := n.version + 1;
    END IF;
    IF changed THEN
        PERFORM leasehold.close_name(n);
    END IF;
    IF n.waiters > 0 AND NOT (n.holders = 1 AND n.mode = 'exclusive')
        AND (n.permits IS NULL OR n.holders < n.permits)
    THEN
        PERFORM leasehold.wake(p_name, n.holders, n.mode);
    END IF;
    RETURN a;
END $$;

-- The most frequent case: an exclusive lease on a name without holder or waiter, no id is refused, and fences are far
-- from their limit, which the clock reaches in 2081. This does the same in one statement, which locks the row: its
-- decision does not depend on the clock. A client that comes again has most likely waited. It is a function of its
-- own, because the other one takes time to set up.
CREATE OR REPLACE FUNCTION leasehold.acquire(
    p_name text, p_id text, p_mode text, p_permits bigint, p_ttl bigint, p_owner text, p_metadata text,
    p_queue bigint, p_repeat boolean, p_nonce bigint, p_first boolean, p_channel text, p_wake bigint
) RETURNS record LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    a leasehold.attempt;
    o_now timestamptz := clock_timestamp();
BEGIN
    IF p_first AND p_mode = 'exclusive' AND o_now < '2080-01-01 00:00+00' THEN
        UPDATE leasehold.names SET
            fence = greatest(fence + 1, leasehold.clock_fence(o_now)), version = version + 1, mode = 'exclusive',
            permits = NULL, holders = 1, next_expiry = o_now + p_ttl * interval '1 microsecond',
            id = p_id, owner = p_owner, metadata = p_metadata, ttl = p_ttl, granted_at = o_now, renewals = 0,
            nonce = p_nonce, repeated = p_repeat, revoked = false
        WHERE name = p_name AND holders = 0 AND waiters = 0 AND next_forget = 'infinity'
            AND fence < 899999999999999
        RETURNING CASE WHEN clock_timestamp() > o_now + interval '1 millisecond' THEN 'late' ELSE 'granted' END, fence
        INTO a.answer, a.fence;
        IF a.answer = 'late' THEN
            -- It had to wait for the row, so the clock after that wait counts, as everywhere.
            o_now := clock_timestamp();
            UPDATE leasehold.names SET
                fence = greatest(fence, leasehold.clock_fence(o_now)), granted_at = o_now,
                next_expiry = o_now + p_ttl * interval '1 microsecond'
            WHERE name = p_name RETURNING 'granted', fence INTO a.answer, a.fence;
        END IF;
        IF a.answer = 'granted' THEN
            a.now := o_now;
            RETURN a;
        END IF;
    END IF;
    RETURN leasehold.acquire_in_full(
        p_name, p_id, p_mode, p_permits, p_ttl, p_owner, p_metadata,
        p_queue, p_repeat, p_nonce, p_first, p_channel, p_wake);
END $$;
