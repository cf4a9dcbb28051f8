-- After the functions have been replaced by newer ones: which they are.
UPDATE leasehold.about SET revision = 3
