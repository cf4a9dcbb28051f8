-- release. The numbers are those of docs/contract.md.
-- The answer is one of done, expired, not_found, superseded, revoked.
CREATE OR REPLACE FUNCTION leasehold.release_in_full(
    p_name text, p_id text, p_fence bigint, p_owner text, p_unanswered bigint, p_nonce bigint,
    OUT o_answer text, OUT o_now timestamptz, OUT o_expired bigint
) LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    n leasehold.names%ROWTYPE;
    s record;
    had boolean := false;     -- settling ended the lease of this id
    dropped boolean := false; -- settling ended a lease
    changed boolean := false;
    was_ttl bigint;
    was_repeated boolean;
    was_nonce bigint;
BEGIN
    -- Does what check_session does, if necessary.
    IF current_setting('transaction_isolation') <> 'read committed' OR current_setting('enable_seqscan') = 'on' THEN
        PERFORM leasehold.check_session();
    END IF;
    SELECT * INTO n FROM leasehold.names WHERE name = p_name FOR UPDATE;
    IF NOT FOUND THEN
        IF p_unanswered IS NULL THEN
            o_answer := 'not_found';
            o_now := clock_timestamp();
            RETURN;
        END IF;
        n := leasehold.open_name(p_name);
    END IF;
    o_now := clock_timestamp();

    IF n.next_expiry <= o_now OR n.next_lapse <= o_now OR n.next_forget <= o_now THEN
        SELECT * INTO s FROM leasehold.settle(n, o_now, p_id);
        n := s.n;
        had := s.p_had;
        dropped := s.p_leases > 0;
        o_expired := s.p_leases;
        changed := true;
    END IF;

    <<act>>
    BEGIN
        IF n.holders > 0 AND n.mode = 'exclusive' THEN
            IF n.id = p_id THEN
                -- 1. and 2. It has one, which is not meant.
                IF n.nonce <> p_nonce THEN
                    o_answer := 'superseded';
                    EXIT act;
                END IF;
                IF n.fence <> p_fence OR n.owner <> p_owner THEN
                    o_answer := 'not_found';
                    EXIT act;
                END IF;
                o_answer := 'done';
                was_ttl := n.ttl;
                was_repeated := n.repeated;
            END IF;
        ELSIF n.holders > 0 THEN
            DELETE FROM leasehold.shares WHERE name = p_name AND id = p_id
                AND (p_nonce IS NULL OR nonce = p_nonce) AND (p_fence IS NULL OR fence = p_fence)
                AND (p_owner IS NULL OR owner = p_owner)
            RETURNING ttl, repeated INTO was_ttl, was_repeated;
            IF FOUND THEN
                o_answer := 'done';
            ELSE
                SELECT nonce INTO was_nonce FROM leasehold.shares WHERE name = p_name AND id = p_id;
                IF FOUND THEN
                    o_answer := CASE WHEN was_nonce <> p_nonce THEN 'superseded' ELSE 'not_found' END;
                    EXIT act;
                END IF;
            END IF;
        END IF;
        IF o_answer = 'done' THEN
            -- 2. The lease ends.
            n.version := n.version + 1;
            n.holders := n.holders - 1;
            IF n.holders = 0 THEN
                n.next_expiry := 'infinity';
            END IF;
            dropped := false; -- counted with the release
            changed := true;
        END IF;
        IF o_answer IS NULL AND n.waiters > 0 THEN
            DELETE FROM leasehold.tickets WHERE id = p_id AND name = p_name
                AND (p_nonce IS NULL OR nonce = p_nonce) AND p_fence IS NULL
                AND (p_owner IS NULL OR owner = p_owner)
            RETURNING ttl, repeated INTO was_ttl, was_repeated;
            IF FOUND THEN
                -- 3. The place is given up.
                o_answer := 'done';
                n.waiters := n.waiters - 1;
                IF n.waiters = 0 THEN
                    n.next_lapse := 'infinity';
                END IF;
                changed := true;
            ELSE
                SELECT nonce INTO was_nonce FROM leasehold.tickets WHERE id = p_id AND name = p_name;
                IF FOUND THEN
                    o_answer := CASE WHEN was_nonce <> p_nonce THEN 'superseded' ELSE 'not_found' END;
                    EXIT act;
                END IF;
            END IF;
        END IF;
        IF o_answer = 'done' THEN
            IF was_repeated OR p_unanswered IS NOT NULL THEN
                n.next_forget := least(n.next_forget, leasehold.spend(
                    p_name, p_id, greatest(was_ttl, coalesce(p_unanswered, 0)), 'not_found', o_now));
            END IF;
            EXIT act;
        END IF;
        -- 4. Neither.
        IF n.next_forget < 'infinity' THEN
            SELECT why INTO o_answer FROM leasehold.spent WHERE name = p_name AND id = p_id;
        END IF;
        o_answer := coalesce(o_answer, CASE WHEN had THEN 'expired' ELSE 'not_found' END);
        IF p_unanswered IS NOT NULL THEN
            n.next_forget := least(
                n.next_forget, leasehold.spend(p_name, p_id, p_unanswered, 'not_found', o_now));
            changed := true;
        END IF;
    END;

    IF dropped THEN
        n.version := n.version + 1;
    END IF;
    IF changed THEN
        UPDATE leasehold.names SET
            version = n.version, holders = n.holders, waiters = n.waiters,
            next_expiry = n.next_expiry, next_lapse = n.next_lapse, next_forget = n.next_forget
        WHERE name = p_name;
    END IF;
    IF n.waiters > 0 THEN
        PERFORM leasehold.wake(p_name, n.holders, n.mode);
    END IF;
END $$;

-- The most frequent case: the release of an exclusive lease by its fence, with no waiter, and no id that is or must be
-- refused. This does the same in one statement, which locks the row. If the lease turns out to have ended, the row is
-- restored.
CREATE OR REPLACE FUNCTION leasehold.release(
    p_name text, p_id text, p_fence bigint, p_owner text, p_unanswered bigint, p_nonce bigint,
    OUT o_answer text, OUT o_now timestamptz, OUT o_expired bigint
) LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    IF p_unanswered IS NULL AND p_nonce IS NULL THEN
        -- The time of its end stays: it is still true that nothing ends before it.
        UPDATE leasehold.names SET version = version + 1, holders = 0
        WHERE name = p_name AND id = p_id AND fence = p_fence AND owner = coalesce(p_owner, owner)
            AND holders = 1 AND mode = 'exclusive' AND waiters = 0 AND next_forget = 'infinity' AND NOT repeated
        RETURNING CASE WHEN next_expiry > clock_timestamp() THEN 'done' ELSE 'expired' END, clock_timestamp()
        INTO o_answer, o_now;
        IF o_answer = 'done' THEN
            RETURN;
        END IF;
        IF o_answer = 'expired' THEN
            UPDATE leasehold.names SET version = version - 1, holders = 1 WHERE name = p_name;
        END IF;
    END IF;
    SELECT * INTO o_answer, o_now, o_expired
    FROM leasehold.release_in_full(p_name, p_id, p_fence, p_owner, p_unanswered, p_nonce);
END $$;
