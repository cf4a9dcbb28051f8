-- A place that was asked for twice leaves a refused id, as if it had lapsed. ?1 until when
INSERT INTO spent (name, id, until_us, why)
SELECT name, id, ?1, 'not_found' FROM tickets WHERE repeated = 1
ON CONFLICT DO NOTHING;
