SELECT boot_id FROM host;
