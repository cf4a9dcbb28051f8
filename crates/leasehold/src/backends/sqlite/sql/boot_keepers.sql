-- And nobody keeps their places.
DELETE FROM keepers;
