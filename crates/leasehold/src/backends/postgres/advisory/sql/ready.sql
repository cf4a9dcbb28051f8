-- Whether the tables of fences are there, and this user may use them. $1: their names, quoted, with their schema.
SELECT bool_and(to_regclass(name) IS NOT NULL),
    bool_and(coalesce(has_table_privilege(to_regclass(name), 'SELECT')
        AND has_table_privilege(to_regclass(name), 'INSERT')
        AND has_table_privilege(to_regclass(name), 'UPDATE'), false))
FROM unnest($1) AS tables (name)
