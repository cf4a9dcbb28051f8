UPDATE host SET swept_at_ms = ?1;
