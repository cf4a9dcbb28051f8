-- ?1 until when
INSERT INTO keepers (until_us) VALUES (?1) RETURNING keeper;
