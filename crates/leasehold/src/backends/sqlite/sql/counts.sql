SELECT (SELECT count(*) FROM leases), (SELECT count(*) FROM tickets);
