-- Who was let in and has not come yet, in the order in which they came to the queue.
SELECT name, id FROM tickets WHERE woken = 1 ORDER BY name, arrival;
