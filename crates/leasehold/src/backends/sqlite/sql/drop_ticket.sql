DELETE FROM tickets WHERE name = ?1 AND id = ?2;
