-- How a server is set up. $1 the schema of our tables
SELECT
    current_setting('server_version'),
    current_setting('fsync'),
    current_setting('full_page_writes'),
    current_setting('synchronous_commit'),
    current_setting('synchronous_standby_names') <> '',
    -- A user without the right to see more still sees that there are rows.
    (SELECT count(*) FROM pg_catalog.pg_stat_replication),
    pg_is_in_recovery(),
    -- The default of a new session; ours set their own value.
    (SELECT reset_val FROM pg_catalog.pg_settings WHERE name = 'default_transaction_isolation'),
    coalesce((SELECT ssl FROM pg_catalog.pg_stat_ssl WHERE pid = pg_backend_pid()), false),
    coalesce(inet_client_addr() <<= inet '127.0.0.0/8' OR inet_client_addr() = inet '::1', true),
    current_setting('is_superuser') = 'on',
    -- Whether everybody (grantee 0) may change our tables.
    EXISTS (SELECT 1 FROM pg_catalog.pg_class AS c
        JOIN pg_catalog.pg_namespace AS s ON s.oid = c.relnamespace
        CROSS JOIN aclexplode(c.relacl) AS a
        WHERE s.nspname = $1 AND a.grantee = 0),
    EXISTS (SELECT 1 FROM pg_catalog.pg_namespace AS s CROSS JOIN aclexplode(s.nspacl) AS a
        WHERE s.nspname = $1 AND a.grantee = 0 AND a.privilege_type = 'CREATE'),
    -- Seconds until the server probes a silent client, and until it gives the client up: two hours by default (Linux);
    -- 0 on a Unix socket.
    current_setting('tcp_keepalives_idle')::int,
    current_setting('tcp_keepalives_interval')::int * current_setting('tcp_keepalives_count')::int,
    -- Since PostgreSQL 14.
    current_setting('client_connection_check_interval', true) IS NOT NULL
