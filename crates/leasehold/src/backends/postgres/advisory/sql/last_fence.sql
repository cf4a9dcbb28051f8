SELECT fence FROM %SCHEMA%.advisory_fences WHERE space = $1 AND key = $2
