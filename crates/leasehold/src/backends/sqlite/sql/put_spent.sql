INSERT INTO spent (name, id, until_us, why) VALUES (?1, ?2, ?3, ?4)
ON CONFLICT (name, id) DO UPDATE SET until_us = excluded.until_us, why = excluded.why;
