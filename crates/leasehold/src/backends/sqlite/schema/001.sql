-- The first layout. docs/sqlite.md explains each column.
-- Times ending in _us are microseconds of CLOCK_BOOTTIME under the boot of `host`, and decide; those ending in _at_ms
-- are milliseconds since 1970, for people.

-- One row: which boot of the machine the times belong to, and when a process last swept.
CREATE TABLE host (
    one         INTEGER PRIMARY KEY CHECK (one = 1),
    boot_id     TEXT NOT NULL,
    swept_at_ms INTEGER NOT NULL
) STRICT;

-- Every name that was ever granted, until its fence counter is no longer needed.
CREATE TABLE names (
    name    TEXT NOT NULL PRIMARY KEY,
    fence   INTEGER NOT NULL,
    version INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE leases (
    name          TEXT NOT NULL,
    id            TEXT NOT NULL,
    mode          TEXT NOT NULL CHECK (mode IN ('exclusive', 'shared', 'permit')),
    permits       INTEGER,
    fence         INTEGER NOT NULL,
    granted_fence INTEGER NOT NULL,
    owner         TEXT NOT NULL,
    metadata      TEXT,
    ttl_us        INTEGER NOT NULL,
    expires_us    INTEGER NOT NULL,
    granted_at_us INTEGER NOT NULL,
    expires_at_ms INTEGER NOT NULL,
    renewals      INTEGER NOT NULL,
    nonce         INTEGER NOT NULL,
    repeated      INTEGER NOT NULL,
    revoked       INTEGER NOT NULL,
    PRIMARY KEY (name, id)
) STRICT, WITHOUT ROWID;
CREATE INDEX leases_by_id ON leases (id);

CREATE TABLE tickets (
    name      TEXT NOT NULL,
    id        TEXT NOT NULL,
    arrival   INTEGER NOT NULL,
    mode      TEXT NOT NULL CHECK (mode IN ('exclusive', 'shared', 'permit')),
    permits   INTEGER,
    owner     TEXT NOT NULL,
    ttl_us    INTEGER NOT NULL,
    lapses_us INTEGER NOT NULL,
    joined_us INTEGER NOT NULL,
    nonce     INTEGER NOT NULL,
    repeated  INTEGER NOT NULL,
    woken     INTEGER NOT NULL,
    PRIMARY KEY (name, id)
) STRICT, WITHOUT ROWID;
CREATE INDEX tickets_by_id ON tickets (id);
-- What a process looks through when the wake file changed; always few rows.
CREATE INDEX tickets_woken ON tickets (name, id) WHERE woken = 1;

CREATE TABLE spent (
    name     TEXT NOT NULL,
    id       TEXT NOT NULL,
    until_us INTEGER NOT NULL,
    why      TEXT NOT NULL CHECK (why IN ('expired', 'not_found', 'superseded', 'revoked')),
    PRIMARY KEY (name, id)
) STRICT, WITHOUT ROWID;

-- For people: the holders of each name, without the lease ids.
CREATE VIEW held AS
SELECT
    leases.name,
    printf('%015d', leases.fence) AS fence,
    leases.mode,
    leases.permits,
    leases.owner,
    leases.metadata,
    datetime(leases.granted_at_us / 1000000, 'unixepoch') AS granted,
    datetime(leases.expires_at_ms / 1000, 'unixepoch') AS expires,
    leases.renewals,
    names.version
FROM leases JOIN names USING (name)
ORDER BY leases.name, leases.granted_fence;
