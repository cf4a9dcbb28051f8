-- What others may have at hand of these names is no longer so.
UPDATE names SET changes = changes + 1;
