-- Durable before answering: the log is synced with every commit.
PRAGMA synchronous = FULL;
-- What is in the file is data, never a program.
PRAGMA trusted_schema = OFF;
PRAGMA temp_store = MEMORY;
