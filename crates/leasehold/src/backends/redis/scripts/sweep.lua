-- sweep: settles one name and wakes.
--
-- gives leases dropped, tickets dropped, leases left, tickets left, and the time

answer = { expired, lapsed, held + (alone and 1 or 0), waiting, now }

