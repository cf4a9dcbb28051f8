-- One heartbeat for all who wait in a process: it moves one row, and not one for each ticket.

-- Until when the places of those who wait in one process are kept. A number is never used again, so that what a dead
-- process kept is kept by nobody else.
CREATE TABLE keepers (
    keeper   INTEGER PRIMARY KEY AUTOINCREMENT,
    until_us INTEGER NOT NULL
) STRICT;

-- Who keeps this place; null: nobody.
ALTER TABLE tickets ADD COLUMN keeper INTEGER;

-- Until when it is kept also without its keeper. The new name is for processes that know only the older layout and
-- still have the file open: they stop, and drop no places that are kept.
ALTER TABLE tickets RENAME COLUMN lapses_us TO alone_us;

-- The tickets, with when each really lapses.
CREATE VIEW places AS
SELECT tickets.*, iif(keepers.until_us > tickets.alone_us, keepers.until_us, tickets.alone_us) AS lapses_us
FROM tickets LEFT JOIN keepers USING (keeper);
