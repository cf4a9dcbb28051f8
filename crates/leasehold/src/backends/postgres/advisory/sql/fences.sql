-- The fences of postgres+advisory: the last one of each key, so that they rise from grant to grant.
-- An administrator can run this (with another schema, if asked for) and give the locking user nothing but
--   GRANT USAGE ON SCHEMA leasehold TO somebody;
--   GRANT SELECT, INSERT, UPDATE, DELETE ON leasehold.advisory_fences TO somebody;
CREATE SCHEMA IF NOT EXISTS %SCHEMA%;
CREATE TABLE IF NOT EXISTS %SCHEMA%.advisory_fences (
    space smallint NOT NULL, -- 1: bigint keys, 2: pairs of int, as in pg_locks.objsubid
    key bigint NOT NULL, -- a pair has its first half on top
    fence bigint NOT NULL,
    PRIMARY KEY (space, key)
) WITH (fillfactor = 50); -- every grant updates its row: room for that on the page
