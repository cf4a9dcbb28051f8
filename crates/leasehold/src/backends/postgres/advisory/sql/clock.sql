(floor(extract(epoch FROM clock_timestamp()) * 256000))::bigint
