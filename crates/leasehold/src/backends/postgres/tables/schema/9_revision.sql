-- Runs after newer functions have replaced older ones: records their revision.
UPDATE leasehold.about SET revision = 5
