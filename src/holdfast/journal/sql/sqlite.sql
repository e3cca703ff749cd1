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

-- Of journals of schema 1 and 2, which had everything in one file: to take them over.

-- name: read_parts
-- The snapshot that counts.
SELECT part, body FROM snapshot_part WHERE upto = ? ORDER BY part

-- name: read_old_history
-- Some of the history of schema 1 after a number: nobody is counted for it.
SELECT seq, body, '' FROM history WHERE seq > ? AND seq <= ? ORDER BY seq LIMIT ?

-- name: read_old_counted_history
-- Some of the history of schema 2 after a number, and whom it is counted against.
SELECT h.seq, h.body, coalesce(s.who, '') FROM history AS h LEFT JOIN history_share AS s ON s.seq = h.seq
WHERE h.seq > ? AND h.seq <= ? ORDER BY h.seq LIMIT ?

-- name: check_parts
-- Ask SQLite whether the table of snapshots is sound.
PRAGMA integrity_check('snapshot_part')

-- name: forget_old_snapshots
-- What the archive has now.
DROP TABLE snapshot_part

-- name: forget_old_history
-- The same.
DROP TABLE history

-- name: forget_old_names
-- The same.
DROP TABLE history_name

-- name: forget_old_shares
-- The same; a journal of schema 1 has none.
DROP TABLE IF EXISTS history_share

-- name: forget_old_sums
-- The same.
DROP TABLE IF EXISTS history_sum

-- name: forget_old_scalars
-- What counts no more.
DELETE FROM meta WHERE key NOT IN ('schema', 'epoch', 'identity', 'archived')
