-- What is live.
SELECT
    (SELECT count(*) FROM leasehold.leases WHERE expires > now.at),
    (SELECT count(*) FROM leasehold.tickets WHERE lapses > now.at)
FROM (SELECT clock_timestamp() AS at) AS now
