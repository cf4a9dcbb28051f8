-- Counts every transaction that wrote a row of a name, tickets too: a process can use its cached copy of a name as
-- long as this has not moved.
ALTER TABLE names ADD COLUMN changes INTEGER NOT NULL DEFAULT 0;
