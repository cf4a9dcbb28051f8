-- Shared by the verbs. A verb locks the row of its name and then reads the clock, once: `p_now`. It works on its copy
-- of that row, `n`, and writes it back at the end.

-- Refuses isolation levels under which a statement does not see what was committed before it. For this transaction, it
-- also sets what our own sessions set for good: plans are kept, even those made while a table was empty, so they must
-- not be scans, nor gather rows in bitmaps, which never mark what is dead in an index; and no call waits for ever for
-- a row.
CREATE OR REPLACE FUNCTION leasehold.check_session() RETURNS boolean LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION 'leasehold needs the isolation level read committed' USING ERRCODE = 'LH001';
    END IF;
    IF current_setting('enable_seqscan') = 'on' THEN
        PERFORM
            set_config('enable_seqscan', 'off', true), set_config('enable_bitmapscan', 'off', true),
            set_config('jit', 'off', true);
        IF current_setting('lock_timeout') = '0' THEN
            PERFORM set_config('lock_timeout', '4s', true);
        END IF;
    END IF;
    RETURN true;
END $$;

-- The clock's part of a fence: microseconds since 1970, in units of 1/256 ms, rounded down. A double holds the
-- microseconds exactly. One expression, so that it costs no call.
CREATE OR REPLACE FUNCTION leasehold.clock_fence(p_now timestamptz) RETURNS bigint LANGUAGE sql STABLE AS $$
    SELECT (date_part('epoch', p_now) * 1000000)::bigint * 32 / 125
$$;

-- Returns the row of a name, locked; makes it if it does not exist. Every later statement of the verb sees what
-- earlier transactions in the row's queue have committed.
CREATE OR REPLACE FUNCTION leasehold.open_name(p_name text) RETURNS leasehold.names LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    n leasehold.names%ROWTYPE;
BEGIN
    PERFORM leasehold.check_session();
    LOOP
        SELECT * INTO n FROM leasehold.names WHERE name = p_name FOR UPDATE;
        EXIT WHEN FOUND;
        INSERT INTO leasehold.names (name) VALUES (p_name) ON CONFLICT DO NOTHING;
    END LOOP;
    RETURN n;
END $$;

-- Refuses an id for its ttl, at least a minute (promise 8). An older reason stays.
CREATE OR REPLACE FUNCTION leasehold.spend(
    p_name text, p_id text, p_ttl bigint, p_why text, p_now timestamptz, OUT p_until timestamptz
) LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    p_until := p_now + greatest(p_ttl, 60000000) * interval '1 microsecond';
    INSERT INTO leasehold.spent AS s (name, id, until, why) VALUES (p_name, p_id, p_until, p_why)
    ON CONFLICT (name, id) DO UPDATE SET until = greatest(s.until, excluded.until);
END $$;

-- Drops what has ended at `p_now`: the first step of every verb, if anything can have ended. It counts again, and so
-- notices rows that an administrator deleted by hand.
CREATE OR REPLACE FUNCTION leasehold.settle(
    INOUT n leasehold.names, p_now timestamptz, p_id text,
    OUT p_leases bigint, OUT p_tickets bigint, OUT p_had boolean
) LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    p_leases := 0;
    p_tickets := 0;
    p_had := false;
    IF n.next_forget <= p_now THEN
        DELETE FROM leasehold.spent WHERE name = n.name AND until <= p_now;
    END IF;
    IF n.next_expiry <= p_now THEN
        IF n.mode = 'exclusive' THEN
            IF n.holders = 1 THEN
                p_leases := 1;
                p_had := n.id = p_id;
                IF n.repeated THEN
                    PERFORM leasehold.spend(n.name, n.id, n.ttl, 'expired', p_now);
                END IF;
            END IF;
            n.holders := 0;
            n.next_expiry := 'infinity';
        ELSE
            WITH gone AS (
                DELETE FROM leasehold.shares WHERE name = n.name AND expires <= p_now
                RETURNING id, ttl, repeated
            ), refused AS (
                SELECT leasehold.spend(n.name, id, ttl, 'expired', p_now) FROM gone WHERE repeated
            )
            SELECT count(*), coalesce(bool_or(id = p_id), false), (SELECT count(*) FROM refused)
            INTO p_leases, p_had FROM gone;
            SELECT count(*), coalesce(min(expires), 'infinity') INTO n.holders, n.next_expiry
            FROM leasehold.shares WHERE name = n.name;
        END IF;
    END IF;
    IF n.next_lapse <= p_now THEN
        WITH gone AS (
            DELETE FROM leasehold.tickets WHERE name = n.name AND lapses <= p_now
            RETURNING id, ttl, repeated
        ), refused AS (
            SELECT leasehold.spend(n.name, id, ttl, 'not_found', p_now) FROM gone WHERE repeated
        )
        SELECT count(*), (SELECT count(*) FROM refused) INTO p_tickets FROM gone;
        SELECT count(*), coalesce(min(lapses), 'infinity') INTO n.waiters, n.next_lapse
        FROM leasehold.tickets WHERE name = n.name;
    END IF;
    SELECT coalesce(min(until) FILTER (WHERE until > p_now), 'infinity') INTO n.next_forget
    FROM leasehold.spent WHERE name = n.name;
END $$;

-- Writes the row back.
CREATE OR REPLACE FUNCTION leasehold.close_name(n leasehold.names) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    UPDATE leasehold.names SET
        fence = n.fence, version = n.version, arrivals = n.arrivals, mode = n.mode, permits = n.permits,
        holders = n.holders, waiters = n.waiters,
        next_expiry = n.next_expiry, next_lapse = n.next_lapse, next_forget = n.next_forget,
        id = n.id, owner = n.owner, metadata = n.metadata, ttl = n.ttl, granted_at = n.granted_at,
        renewals = n.renewals, nonce = n.nonce, repeated = n.repeated, revoked = n.revoked
    WHERE name = n.name;
END $$;
