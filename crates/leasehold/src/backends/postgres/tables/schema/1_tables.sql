-- The tables of version 3. docs/postgres.md explains each column.
--
-- Names, owners and metadata are text, which holds no NUL in PostgreSQL: U+0000 is written U+0001 U+0001, and
-- U+0001 is written U+0001 U+0002. That is one-to-one and keeps the order. COLLATE "C": names compare as bytes.
-- `permits` is the limit of a semaphore, and null for exclusive and shared. Durations are in microseconds.

CREATE SCHEMA IF NOT EXISTS leasehold;

-- One row: which version of these files is installed. Clients must know `version`, which covers the tables and how to
-- call the functions. `revision` counts changes inside the functions, which clients need not know.
CREATE TABLE leasehold.about (
    one       boolean PRIMARY KEY DEFAULT true CHECK (one),
    version   integer NOT NULL,
    installed timestamptz NOT NULL DEFAULT now(),
    revision  integer NOT NULL
);
INSERT INTO leasehold.about (version, revision) VALUES (3, 5);

-- Every name that was ever granted, until its fence counter is no longer needed. Every verb locks the row of its
-- name first. A third of each page is left free, so that updates stay on their page (HOT) unless the id is new.
CREATE TABLE leasehold.names (
    name        text COLLATE "C" PRIMARY KEY,
    fence       bigint NOT NULL DEFAULT 0,
    version     bigint NOT NULL DEFAULT 0,
    -- The last arrival number given out in the queue.
    arrivals    bigint NOT NULL DEFAULT 0,
    -- The mode that is held now, or was held last: all leases and tickets are of one kind.
    mode        text NOT NULL DEFAULT 'exclusive',
    permits     bigint,
    holders     bigint NOT NULL DEFAULT 0,
    waiters     bigint NOT NULL DEFAULT 0,
    -- Nothing of the name expires, lapses or is forgotten before these times. They may be too early, never too late.
    next_expiry timestamptz NOT NULL DEFAULT 'infinity',
    next_lapse  timestamptz NOT NULL DEFAULT 'infinity',
    next_forget timestamptz NOT NULL DEFAULT 'infinity',
    -- An exclusive lease is stored here, because it is alone: while `mode` is exclusive and `holders` is 1. Its fence
    -- is `fence`, and it expires at `next_expiry`. At other times these columns are leftovers of the last one.
    id          text COLLATE "C",
    owner       text,
    metadata    text,
    ttl         bigint,
    granted_at  timestamptz,
    renewals    bigint,
    nonce       bigint,
    repeated    boolean,
    revoked     boolean,
    -- What a holder left there, the fence of its lease, and the order of that lease's notes; null if nobody did.
    note          text,
    note_fence    bigint,
    note_revision bigint
) WITH (fillfactor = 70);
CREATE INDEX names_by_id ON leasehold.names (id);

-- The shared leases and the permits.
CREATE TABLE leasehold.shares (
    name       text COLLATE "C" NOT NULL,
    id         text COLLATE "C" NOT NULL,
    mode       text NOT NULL,
    permits    bigint,
    fence      bigint NOT NULL,
    -- The fence at the time of the grant: a raised one says nothing about the order of grants.
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

-- All leases, from both tables.
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
    -- The ttl of the claim.
    ttl      bigint NOT NULL,
    joined   timestamptz NOT NULL,
    lapses   timestamptz NOT NULL,
    nonce    bigint NOT NULL,
    repeated boolean NOT NULL DEFAULT false,
    woken    boolean NOT NULL DEFAULT false,
    -- The channel of its client and the wake number of the waiter there; null if the client does not listen.
    channel  text,
    wake     bigint,
    PRIMARY KEY (name, arrival)
);
CREATE UNIQUE INDEX tickets_by_id ON leasehold.tickets (id, name);

-- Ids that are refused from now on, although they have neither lease nor ticket.
CREATE TABLE leasehold.spent (
    name  text COLLATE "C" NOT NULL,
    id    text COLLATE "C" NOT NULL,
    until timestamptz NOT NULL,
    why   text NOT NULL,
    PRIMARY KEY (name, id)
);

-- The answer of acquire. It is a type, because the server would otherwise make one for every call. `granted` comes
-- with the fence only: the rest is as the client asked.
CREATE TYPE leasehold.attempt AS (
    answer     text,
    now        timestamptz,
    -- How many expired leases the call found.
    expired    bigint,
    -- The mode and limit of the lease; for a mismatch, those that the name is in use with.
    mode       text,
    permits    bigint,
    fence      bigint,
    renewals   bigint,
    granted_at timestamptz,
    -- Of the lease, or of the lease that is in the way.
    expires    timestamptz,
    place      bigint,
    waiters    bigint,
    next_lapse timestamptz,
    owner      text,
    ttl        bigint
);

-- For people: the holders of each name, without the lease ids.
CREATE VIEW leasehold.held AS
SELECT
    l.name, to_char(l.fence, 'FM000000000000000') AS fence, l.mode, l.permits, l.owner, l.metadata,
    l.granted_at, l.expires, l.renewals, l.revoked, n.version, n.waiters
FROM leasehold.leases AS l JOIN leasehold.names AS n USING (name)
WHERE l.expires > clock_timestamp()
ORDER BY l.name, l.granted;
