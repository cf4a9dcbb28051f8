-- The tables of version 3. docs/postgres.md explains each column.
--
-- Names, owners and metadata are text, which holds no NUL in PostgreSQL: U+0000 is written U+0001 U+0001, and
-- U+0001 is written U+0001 U+0002. That is one-to-one and keeps the order. COLLATE "C": names compare as bytes.
-- `permits` is the limit of a semaphore, and null for exclusive and shared. Durations are in microseconds.

CREATE SCHEMA IF NOT EXISTS leasehold;

-- One row: which version of these files is installed. Clients must know `version`: the tables, and how the functions
-- are called. `revision` counts what they need not know, which is how the functions work.
CREATE TABLE leasehold.about (
    one       boolean PRIMARY KEY DEFAULT true CHECK (one),
    version   integer NOT NULL,
    installed timestamptz NOT NULL DEFAULT now(),
    revision  integer NOT NULL
);
INSERT INTO leasehold.about (version, revision) VALUES (3, 3);

-- Every name that was ever granted, until its fence counter is no longer needed. Every verb locks the row of its
-- name first. A third of each page is left free, so that updates stay on their page (HOT) unless the id is new.
CREATE TABLE leasehold.names (
    name        text COLLATE "C" PRIMARY KEY,
    fence       bigint NOT NULL DEFAULT 0,
    version     bigint NOT NULL DEFAULT 0,
    -- The last place given out in the queue.
    arrivals    bigint NOT NULL DEFAULT 0,
    -- What is held now, or was held last: all leases and tickets are of one kind.
    mode        text NOT NULL DEFAULT 'exclusive',
    permits     bigint,
    holders     bigint NOT NULL DEFAULT 0,
    waiters     bigint NOT NULL DEFAULT 0,
    -- Nothing of the name expires, lapses or is forgotten before these. May be too early, never too late.
    next_expiry timestamptz NOT NULL DEFAULT 'infinity',
    next_lapse  timestamptz NOT NULL DEFAULT 'infinity',
    next_forget timestamptz NOT NULL DEFAULT 'infinity',
    -- An exclusive lease is here, because it is alone: while `mode` is exclusive and `holders` is 1. Its fence is
    -- `fence`, and it expires at `next_expiry`. At other times this is what is left of the last one.
    id          text COLLATE "C",
    owner       text,
    metadata    text,
    ttl         bigint,
    granted_at  timestamptz,
    renewals    bigint,
    nonce       bigint,
    repeated    boolean,
    revoked     boolean
) WITH (fillfactor = 70);
CREATE INDEX names_by_id ON leasehold.names (id);

-- The leases that are shared, and the permits.
CREATE TABLE leasehold.shares (
    name       text COLLATE "C" NOT NULL,
    id         text COLLATE "C" NOT NULL,
    mode       text NOT NULL,
    permits    bigint,
    fence      bigint NOT NULL,
    -- The fence it was granted with: a raised one says nothing about the order of grants.
    granted    bigint NOT NULL,
    owner      text NOT NULL,
    metadata   text,
    ttl        bigint NOT NULL,
    granted_at timestamptz NOT NULL,
    expires    timestamptz NOT NULL,
    renewals   bigint NOT NULL,
    nonce      bigint NOT NULL,
    repeated   boolean NOT NULL,
    revoked    boolean NOT NULL,
    PRIMARY KEY (name, id)
);
CREATE INDEX shares_by_id ON leasehold.shares (id);

-- All leases, wherever they are.
CREATE VIEW leasehold.leases AS
SELECT name, id, mode, permits, fence, fence AS granted, owner, metadata, ttl, granted_at, next_expiry AS expires,
    renewals, nonce, repeated, revoked
FROM leasehold.names WHERE mode = 'exclusive' AND holders = 1
UNION ALL
SELECT name, id, mode, permits, fence, granted, owner, metadata, ttl, granted_at, expires,
    renewals, nonce, repeated, revoked
FROM leasehold.shares;

CREATE TABLE leasehold.tickets (
    name     text COLLATE "C" NOT NULL,
    arrival  bigint NOT NULL,
    id       text COLLATE "C" NOT NULL,
    mode     text NOT NULL,
    permits  bigint,
    owner    text NOT NULL,
    -- Of the claim.
    ttl      bigint NOT NULL,
    joined   timestamptz NOT NULL,
    lapses   timestamptz NOT NULL,
    nonce    bigint NOT NULL,
    repeated boolean NOT NULL DEFAULT false,
    woken    boolean NOT NULL DEFAULT false,
    -- Where its client listens, and the number by which it knows who waits; null if it does not listen.
    channel  text,
    wake     bigint,
    PRIMARY KEY (name, arrival)
);
CREATE UNIQUE INDEX tickets_by_id ON leasehold.tickets (id, name);

-- Ids that are refused from here on, although they have neither lease nor ticket.
CREATE TABLE leasehold.spent (
    name  text COLLATE "C" NOT NULL,
    id    text COLLATE "C" NOT NULL,
    until timestamptz NOT NULL,
    why   text NOT NULL,
    PRIMARY KEY (name, id)
);

-- What acquire answers. A type, because the server would make one anew for every call that has results of its own.
-- `granted` says no more than the fence: the rest is as it was asked for.
CREATE TYPE leasehold.attempt AS (
    answer     text,
    now        timestamptz,
    -- Leases that were found to have expired.
    expired    bigint,
    -- Of the lease, or of what the name is in use as.
    mode       text,
    permits    bigint,
    fence      bigint,
    renewals   bigint,
    granted_at timestamptz,
    -- Of the lease, or of the one that is in the way.
    expires    timestamptz,
    place      bigint,
    waiters    bigint,
    next_lapse timestamptz,
    owner      text,
    ttl        bigint
);

-- For people: who holds what, without the lease ids.
CREATE VIEW leasehold.held AS
SELECT
    l.name, to_char(l.fence, 'FM000000000000000') AS fence, l.mode, l.permits, l.owner, l.metadata,
    l.granted_at, l.expires, l.renewals, l.revoked, n.version, n.waiters
FROM leasehold.leases AS l JOIN leasehold.names AS n USING (name)
WHERE l.expires > clock_timestamp()
ORDER BY l.name, l.granted;
