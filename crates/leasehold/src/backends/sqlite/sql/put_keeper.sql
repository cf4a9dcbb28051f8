-- Also one that was taken for dead and dropped, but its process was only held up. ?1 keeper, ?2 until when
INSERT INTO keepers (keeper, until_us) VALUES (?1, ?2)
ON CONFLICT (keeper) DO UPDATE SET until_us = excluded.until_us;
