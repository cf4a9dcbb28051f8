-- After the functions have been replaced by newer ones: which they are.
ALTER TABLE leasehold.about ADD COLUMN IF NOT EXISTS revision integer NOT NULL DEFAULT 1;
UPDATE leasehold.about SET revision = 2
