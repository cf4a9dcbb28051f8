-- Takes a lock on whatever session this is, but never a second time: PostgreSQL would count, and free it only
-- after as many unlocks. NULL if the session has it already. %LOCK% is the call, %HELD% the look for it.
SELECT CASE WHEN EXISTS (%HELD%) THEN NULL ELSE %LOCK% END
