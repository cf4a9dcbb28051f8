-- What is installed.
SELECT version, revision FROM leasehold.about
