-- The note of a name: what a holder left there, which lease wrote it, and the order of that lease's notes. Null: nobody
-- wrote one. Processes that know only the older layout leave these columns alone.
ALTER TABLE names ADD COLUMN note TEXT;
ALTER TABLE names ADD COLUMN note_fence INTEGER;
ALTER TABLE names ADD COLUMN note_revision INTEGER;
