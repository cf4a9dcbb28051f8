-- A new session of our own: no limit of the server may end a wait or an idle session that holds locks; transactions
-- see what others have just committed; and a waiter whose client died leaves the queue (PostgreSQL 14, Linux).
SELECT count(set_config(name, value, false)), pg_backend_pid(), pg_is_in_recovery()
FROM (VALUES
    ('statement_timeout', '0'),
    ('lock_timeout', '0'),
    ('idle_session_timeout', '0'),
    ('transaction_timeout', '0'),
    ('default_transaction_isolation', 'read committed'),
    ('default_transaction_read_only', 'off'),
    ('client_connection_check_interval', '2s')
) AS wanted (name, value)
WHERE current_setting(name, true) IS NOT NULL
