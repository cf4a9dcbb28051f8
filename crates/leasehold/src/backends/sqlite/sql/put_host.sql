INSERT INTO host (one, boot_id) VALUES (1, ?1)
ON CONFLICT (one) DO UPDATE SET boot_id = excluded.boot_id;
