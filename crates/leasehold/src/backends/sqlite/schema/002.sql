-- Counts every transaction that wrote anything of a name, tickets too: what a process has at hand of a name is
-- good as long as this has not moved.
ALTER TABLE names ADD COLUMN changes INTEGER NOT NULL DEFAULT 0;
