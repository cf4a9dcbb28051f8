INSERT INTO names (name, fence, version, changes) VALUES (?1, ?2, ?3, ?4)
ON CONFLICT (name) DO UPDATE SET
    fence = excluded.fence,
    version = excluded.version,
    changes = excluded.changes;
