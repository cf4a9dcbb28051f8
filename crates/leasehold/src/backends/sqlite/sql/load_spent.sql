SELECT id, until_us, why FROM spent WHERE name = ?1;
