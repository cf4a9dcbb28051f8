INSERT INTO names (name, fence, version) VALUES (?1, ?2, ?3)
ON CONFLICT (name) DO UPDATE SET fence = excluded.fence, version = excluded.version;
