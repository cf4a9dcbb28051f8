DELETE FROM spent WHERE name = ?1 AND id = ?2;
