-- Lets a waiter whose client died leave the queue (since PostgreSQL 14). Only some systems can do that, Linux among them;
-- others refuse the setting.
SELECT set_config('client_connection_check_interval', '2s', false)
WHERE current_setting('client_connection_check_interval', true) IS NOT NULL
