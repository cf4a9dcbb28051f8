-- Nobody who waited is still there.
DELETE FROM tickets;
