-- Fences for MySQL 8.0.16 or newer and MariaDB 10.5 or newer: refuses writers that have lost their lock.
-- Printed by `leasehold fences sql --dialect mysql`. Run it once, with the mysql or mariadb client, in the database of
-- the tables it protects. (DELIMITER is a word of these clients. A driver takes the procedure without it, up to END.)
--
-- In each transaction that writes, before the first write, with InnoDB tables and after START TRANSACTION:
--     CALL check_fence('report', 459475822995008);
-- It compares the fence with the highest that the resource `report` has seen, and remembers it if it is higher. An
-- equal fence passes: the same holder writes again. A lower one fails with SQLSTATE 45000 and error 30001: roll back
-- then. Other writers of the resource wait until this transaction ends, so check and write are one step. With
-- autocommit and without START TRANSACTION the check is apart from the write and protects little.
--
-- Only exclusive holders may call it: readers and permit holders are inside together, and would refuse each other.
-- A trigger that does this for every row: `leasehold fences sql --dialect mysql --table report`.

CREATE TABLE IF NOT EXISTS fences (
    -- What is protected: the name of the lock, or one of your own, in UTF-8. Bytes, so that no two names are equal.
    resource VARBINARY(512) NOT NULL PRIMARY KEY,
    -- The highest fence that it has seen. As text: LPAD(fence, 15, '0').
    fence    BIGINT NOT NULL CHECK (fence BETWEEN 1 AND 900000000000000)
) ENGINE = InnoDB;

DROP PROCEDURE IF EXISTS check_fence;

DELIMITER //
CREATE PROCEDURE check_fence(IN given_resource VARCHAR(512) CHARACTER SET utf8mb4, IN given_fence BIGINT)
MODIFIES SQL DATA
BEGIN
    DECLARE highest BIGINT;
    -- A message has room for 128 characters.
    DECLARE problem VARCHAR(128) CHARACTER SET utf8mb4;
    IF given_resource IS NULL OR OCTET_LENGTH(given_resource) > 512
        OR given_fence IS NULL OR given_fence NOT BETWEEN 1 AND 900000000000000 THEN
        SET problem = LEFT(CONCAT('no valid fence ', IFNULL(given_fence, 'null'), ' for resource ',
            IFNULL(QUOTE(given_resource), 'null')), 128);
        SIGNAL SQLSTATE '45000' SET MYSQL_ERRNO = 30002, MESSAGE_TEXT = problem;
    END IF;
    -- Locks the row until the transaction ends.
    INSERT INTO fences (resource, fence) VALUES (given_resource, given_fence)
    ON DUPLICATE KEY UPDATE fence = GREATEST(fence, given_fence);
    -- A locking read sees what is committed, whatever the isolation level.
    SELECT fence INTO highest FROM fences WHERE resource = CAST(given_resource AS BINARY) FOR UPDATE;
    IF highest > given_fence THEN
        SET problem = LEFT(CONCAT('stale fence ', given_fence, ', the highest seen is ', highest, ', for resource ',
            QUOTE(given_resource)), 128);
        SIGNAL SQLSTATE '45000' SET MYSQL_ERRNO = 30001, MESSAGE_TEXT = problem;
    END IF;
END//
DELIMITER ;
