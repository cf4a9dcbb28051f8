-- Whether the table of fences is there, and this user may use it. $1: its name, quoted, with its schema.
SELECT to_regclass($1) IS NOT NULL,
    coalesce(has_table_privilege(to_regclass($1), 'SELECT')
        AND has_table_privilege(to_regclass($1), 'INSERT')
        AND has_table_privilege(to_regclass($1), 'UPDATE'), false)
