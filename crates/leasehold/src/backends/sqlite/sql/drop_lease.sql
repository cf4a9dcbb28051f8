DELETE FROM leases WHERE name = ?1 AND id = ?2;
