-- Whether the server still has a session: its process, $1, and when that began, $2. A row if it has: whether it is at work.
SELECT state IS DISTINCT FROM 'idle' FROM pg_stat_activity
WHERE pid = $1 AND (extract(epoch FROM backend_start) * 1000000)::bigint IS NOT DISTINCT FROM $2
