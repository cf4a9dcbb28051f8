-- The fences of postgres+advisory, so that they rise from grant to grant. An administrator can run this (with another
-- schema, if asked for) and give the locking user nothing but
--   GRANT USAGE ON SCHEMA leasehold TO somebody;
--   GRANT SELECT, INSERT, UPDATE, DELETE ON leasehold.advisory_fences, leasehold.advisory_fences_live TO somebody;
CREATE SCHEMA IF NOT EXISTS %SCHEMA%;
-- No fence above this one was given out: reserved some seconds ahead, so that few grants have to wait for the disk.
CREATE TABLE IF NOT EXISTS %SCHEMA%.advisory_fences (
    space smallint NOT NULL, -- 1: bigint keys, 2: pairs of int, as in pg_locks.objsubid
    key bigint NOT NULL, -- a pair has its first half on top
    fence bigint NOT NULL,
    PRIMARY KEY (space, key)
) WITH (fillfactor = 50); -- rows are updated: room for that on the page
-- The last fence that was given out. Not logged: PostgreSQL empties it in a crash, and it is empty after a failover.
-- Then the next fence is the one after all that were reserved.
CREATE UNLOGGED TABLE IF NOT EXISTS %SCHEMA%.advisory_fences_live (
    space smallint NOT NULL,
    key bigint NOT NULL,
    fence bigint NOT NULL,
    clock bigint NOT NULL, -- what the clock said when the row was made
    PRIMARY KEY (space, key)
) WITH (fillfactor = 50);
