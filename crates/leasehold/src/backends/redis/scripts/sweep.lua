-- sweep: settles one name and wakes.
--
-- gives tickets dropped, leases left, tickets left, and the time

answer = { lapsed, held + (alone and 1 or 0), waiting, now }

