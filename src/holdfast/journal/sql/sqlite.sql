-- Every statement of the SQLite journal. Each has a name and says what it is for; Python never builds SQL.

-- name: create_meta
-- One row per scalar: the schema, the tenure, whose journal it is, how far the archive that it knows of reaches.
CREATE TABLE meta (key TEXT PRIMARY KEY, value INTEGER NOT NULL) STRICT, WITHOUT ROWID

-- name: create_batch
-- One row per transaction: the cheapest form, for the loop waits for it.
CREATE TABLE batch (first_seq INTEGER PRIMARY KEY, last_seq INTEGER NOT NULL, body BLOB NOT NULL) STRICT

-- name: read_meta
-- One scalar.
SELECT value FROM meta WHERE key = ?

-- name: write_meta
-- Set one scalar.
INSERT INTO meta (key, value) VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value

-- name: append_batch
-- The write that every answer waits for.
INSERT INTO batch (first_seq, last_seq, body) VALUES (?, ?, ?)

-- name: read_batches
-- The records that are not archived, in order.
SELECT first_seq, last_seq, body FROM batch WHERE first_seq > ? ORDER BY first_seq

-- name: read_batches_upto
-- The same, up to one.
SELECT first_seq, last_seq, body FROM batch WHERE first_seq > ? AND first_seq <= ? ORDER BY first_seq

-- name: read_batches_backwards
-- The newest first, for history that is not yet in its own table.
SELECT first_seq, body FROM batch WHERE first_seq > ? AND first_seq < ? ORDER BY first_seq DESC

-- name: read_batch_end
-- The last number of the batch that a record would be in.
SELECT last_seq FROM batch WHERE first_seq <= ? ORDER BY first_seq DESC LIMIT 1

-- name: read_batch_after
-- The batch that holds the first record after a number.
SELECT last_seq, body FROM batch WHERE last_seq > ? ORDER BY first_seq LIMIT 1

-- name: read_last_batch
-- The number of the newest record.
SELECT max(last_seq) FROM batch

-- name: read_batch_sizes
-- Some of what the archive stands for, and how large it is.
SELECT first_seq, length(body) FROM batch WHERE first_seq <= ? ORDER BY first_seq LIMIT ?

-- name: drop_batch
-- Drop what the archive stands for.
DELETE FROM batch WHERE first_seq = ?

-- name: check_meta
-- Ask SQLite whether a table that is needed to start is sound.
PRAGMA integrity_check('meta')

-- name: check_batch
-- The same.
PRAGMA integrity_check('batch')

-- name: check_integrity
-- Ask SQLite whether the file is sound.
PRAGMA integrity_check(10)
