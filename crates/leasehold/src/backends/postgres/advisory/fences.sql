-- The fence tables of postgres+advisory, which make fences increase from grant to grant. An administrator can run this
-- (with another schema, if needed) and grant the locking user only
--   GRANT USAGE ON SCHEMA leasehold TO locking_user;
--   GRANT SELECT, INSERT, UPDATE, DELETE ON leasehold.advisory_fences, leasehold.advisory_fences_live TO locking_user;
CREATE SCHEMA IF NOT EXISTS %SCHEMA%;
-- No fence above this was given out: reserved some seconds ahead, so that few grants have to wait for the disk.
CREATE TABLE IF NOT EXISTS %SCHEMA%.advisory_fences (
    space smallint NOT NULL, -- 1: bigint keys, 2: pairs of int, as in pg_locks.objsubid
    key bigint NOT NULL, -- a pair has its first half on top
    fence bigint NOT NULL,
    PRIMARY KEY (space, key)
) WITH (fillfactor = 50); -- rows are updated: room for that on the page
-- The last fence that was given out. Not logged: PostgreSQL empties this table in a crash, and it is empty after a
-- fail-over. The next fence then comes after all reserved ones.
CREATE UNLOGGED TABLE IF NOT EXISTS %SCHEMA%.advisory_fences_live (
    space smallint NOT NULL,
    key bigint NOT NULL,
    fence bigint NOT NULL,
    clock bigint NOT NULL, -- what the clock said when the row was made
    PRIMARY KEY (space, key)
) WITH (fillfactor = 50);
