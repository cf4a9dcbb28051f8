SELECT swept_at_ms FROM host;
