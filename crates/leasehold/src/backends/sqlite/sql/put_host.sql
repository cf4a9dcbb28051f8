INSERT INTO host (one, boot_id, swept_at_ms) VALUES (1, ?1, ?2)
ON CONFLICT (one) DO UPDATE SET boot_id = excluded.boot_id;
