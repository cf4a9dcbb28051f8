-- What a server is asked once, when the store is opened. $1 the schema
SELECT
    current_setting('server_version_num')::int,
    current_setting('server_encoding'),
    current_setting('transaction_isolation'),
    pg_is_in_recovery() OR current_setting('transaction_read_only')::boolean,
    pg_backend_pid(),
    EXISTS (SELECT 1 FROM pg_catalog.pg_namespace WHERE nspname = $1),
    EXISTS (SELECT 1 FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_namespace AS s ON s.oid = c.relnamespace
        WHERE s.nspname = $1 AND c.relname = 'about')
