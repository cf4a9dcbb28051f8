-- Those that keep nothing any more: their places lapse with and without them. ?1 now
DELETE FROM keepers WHERE until_us <= ?1;
