-- Notes: what a holder leaves at a name, with a renewal or a release (promise 11). The functions of those verbs do the
-- rest; clients that know no notes call them directly.

-- Writes the note of a name, whose row is locked, for a lease with this fence, unless the one there comes after it.
CREATE OR REPLACE FUNCTION leasehold.write_note(
    p_name text, p_fence bigint, p_note text, p_revision bigint
) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    UPDATE leasehold.names SET note = p_note, note_fence = p_fence, note_revision = p_revision
    WHERE name = p_name AND (note_fence IS NULL OR (note_fence, note_revision) <= (p_fence, p_revision));
END $$;

-- renew, with a note or null for each lease.
CREATE OR REPLACE FUNCTION leasehold.renew_with_notes(
    p_names text[], p_ids text[], p_ttls bigint[], p_fences bigint[], p_owners text[], p_shorten bigint[],
    p_modes text[], p_permits bigint[], p_raise bigint[], p_patience integer, p_notes text[], p_revisions bigint[]
) RETURNS TABLE (
    o_now timestamptz, o_answer text, o_mode text, o_permits bigint, o_fence bigint, o_renewals bigint,
    o_granted_at timestamptz, o_expires timestamptz, o_expired bigint
) LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    i integer := 0;
    before bigint;
BEGIN
    IF cardinality(array_remove(p_shorten, NULL)) = 0 THEN
        FOR o_now, o_answer, o_mode, o_permits, o_fence, o_renewals, o_granted_at, o_expires, o_expired IN
            SELECT * FROM leasehold.renew(
                p_names, p_ids, p_ttls, p_fences, p_owners, p_shorten, p_modes, p_permits, p_raise, p_patience)
        LOOP
            i := i + 1;
            IF p_notes[i] IS NOT NULL AND o_answer = 'held' THEN
                PERFORM leasehold.write_note(p_names[i], o_fence, p_notes[i], p_revisions[i]);
            END IF;
            RETURN NEXT;
        END LOOP;
        RETURN;
    END IF;
    -- A shortening that does nothing writes nothing. Only the count before it says whether it does, so these go one by
    -- one; clients have no such batches.
    FOR i IN 1 .. cardinality(p_names) LOOP
        before := NULL;
        PERFORM 1 FROM leasehold.names WHERE name = p_names[i] FOR UPDATE SKIP LOCKED;
        IF FOUND THEN
            SELECT renewals INTO before FROM leasehold.leases WHERE name = p_names[i] AND id = p_ids[i];
        END IF;
        SELECT * INTO o_now, o_answer, o_mode, o_permits, o_fence, o_renewals, o_granted_at, o_expires, o_expired
        FROM leasehold.renew(
            p_names[i:i], p_ids[i:i], p_ttls[i:i], p_fences[i:i], p_owners[i:i], p_shorten[i:i], p_modes[i:i],
            p_permits[i:i], p_raise[i:i], p_patience);
        IF p_notes[i] IS NOT NULL AND o_answer = 'held' AND o_renewals = before + 1 THEN
            PERFORM leasehold.write_note(p_names[i], o_fence, p_notes[i], p_revisions[i]);
        END IF;
        RETURN NEXT;
    END LOOP;
END $$;

-- release, with a note, which only a lease leaves and a place in the queue does not.
CREATE OR REPLACE FUNCTION leasehold.release_with_note(
    p_name text, p_id text, p_fence bigint, p_owner text, p_unanswered bigint, p_nonce bigint,
    p_note text, p_revision bigint,
    OUT o_answer text, OUT o_now timestamptz, OUT o_expired bigint
) LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    held_by bigint;
BEGIN
    PERFORM leasehold.check_session();
    PERFORM 1 FROM leasehold.names WHERE name = p_name FOR UPDATE;
    SELECT fence INTO held_by FROM leasehold.leases WHERE name = p_name AND id = p_id;
    SELECT * INTO o_answer, o_now, o_expired
    FROM leasehold.release(p_name, p_id, p_fence, p_owner, p_unanswered, p_nonce);
    IF o_answer = 'done' AND held_by IS NOT NULL THEN
        PERFORM leasehold.write_note(p_name, held_by, p_note, p_revision);
    END IF;
END $$;
