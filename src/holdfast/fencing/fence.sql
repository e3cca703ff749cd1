-- Every statement of SqlFence. {table} is the table's name; :resource and :token become what the driver understands.

-- name: create
-- One row per resource: the greatest token it has seen, and how often the fence was passed.
-- VARCHAR, because MySQL has no TEXT in a primary key.
CREATE TABLE IF NOT EXISTS {table} (
    resource VARCHAR(256) NOT NULL PRIMARY KEY, token BIGINT NOT NULL, passed BIGINT NOT NULL
)

-- name: pass
-- Compare, raise and lock in one statement. `passed` makes it a change even where the token stays,
-- for MySQL counts the rows that changed and not those that were found.
UPDATE {table} SET token = :token, passed = passed + 1 WHERE resource = :resource AND token <= :token

-- name: look
-- Which token was in the way, if any.
SELECT token FROM {table} WHERE resource = :resource

-- name: add
-- The first token of a resource. The primary key keeps a second one out until this transaction ends.
INSERT INTO {table} (resource, token, passed) VALUES (:resource, :token, 1)

-- name: mark
-- PostgreSQL gives up a transaction at its first error; up to this point it can be taken back.
SAVEPOINT holdfast_fence

-- name: go_back
-- After somebody else added the resource first.
ROLLBACK TO SAVEPOINT holdfast_fence

-- name: unmark
-- Leave no savepoint behind in the caller's transaction.
RELEASE SAVEPOINT holdfast_fence
