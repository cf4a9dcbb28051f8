-- Who was let in and has not come yet.
SELECT name, id FROM tickets WHERE woken = 1;
