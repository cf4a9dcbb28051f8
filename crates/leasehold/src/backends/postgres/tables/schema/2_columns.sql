-- Runs before newer functions replace older ones: columns that newer functions know, in tables that an older client has
-- made. Older functions leave them alone. Waits only a moment for running calls, because later calls wait behind it.
SET LOCAL lock_timeout = '1s';
ALTER TABLE leasehold.names
    ADD COLUMN IF NOT EXISTS note text,
    ADD COLUMN IF NOT EXISTS note_fence bigint,
    ADD COLUMN IF NOT EXISTS note_revision bigint;
SET LOCAL lock_timeout = '60s';
