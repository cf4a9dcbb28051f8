-- sweep: settles one name and wakes.
--
-- gives leases dropped, tickets dropped, leases left, tickets left, and the time

settle()
finish()
return { expired, lapsed, total(), waiting, now }
