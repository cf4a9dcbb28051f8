-- What is installed: version and revision. The first functions had no column for the latter.
SELECT version, coalesce((to_jsonb(about) ->> 'revision')::int, 1) FROM leasehold.about
