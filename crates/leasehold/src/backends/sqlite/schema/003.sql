-- One heartbeat for all waiters of a process: it updates one row instead of one for each ticket.

-- Until when the places of the waiters in one process are kept. A number is never used again, so that no other process
-- keeps what a dead process kept.
CREATE TABLE keepers (
    keeper   INTEGER PRIMARY KEY AUTOINCREMENT,
    until_us INTEGER NOT NULL
) STRICT;

-- The keeper of this place; null if there is none.
ALTER TABLE tickets ADD COLUMN keeper INTEGER;

-- Until when the place is kept without its keeper. The new column name is for processes that know only the older
-- layout and still have the file open: they stop, and drop no places that are kept.
ALTER TABLE tickets RENAME COLUMN lapses_us TO alone_us;

-- The tickets, each with the time when it really lapses.
CREATE VIEW places AS
SELECT tickets.*, iif(keepers.until_us > tickets.alone_us, keepers.until_us, tickets.alone_us) AS lapses_us
FROM tickets LEFT JOIN keepers USING (keeper);
