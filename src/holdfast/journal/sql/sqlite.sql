-- Every statement of the SQLite journal. Each has a name and says what it is for; Python never builds SQL.

-- name: create_meta
-- One row per scalar: the schema, the tenure, how far the snapshot reaches, its parts and checksum, how long the history is.
CREATE TABLE meta (key TEXT PRIMARY KEY, value INTEGER NOT NULL) STRICT, WITHOUT ROWID

-- name: create_batch
-- One row per transaction: the cheapest form, for the loop waits for it.
CREATE TABLE batch (first_seq INTEGER PRIMARY KEY, last_seq INTEGER NOT NULL, body BLOB NOT NULL) STRICT

-- name: create_snapshot_part
-- The snapshot, in the order of its parts. Only the one that `meta` names counts.
CREATE TABLE snapshot_part (
    upto INTEGER NOT NULL, part INTEGER NOT NULL, body BLOB NOT NULL, PRIMARY KEY (upto, part)
) STRICT, WITHOUT ROWID

-- name: create_history
-- Records that outlive their snapshot, one row each, by number.
CREATE TABLE history (seq INTEGER PRIMARY KEY, wall_ms INTEGER NOT NULL, body BLOB NOT NULL) STRICT

-- name: create_history_name
-- Which records concern a name; a session's end concerns several.
CREATE TABLE history_name (name TEXT NOT NULL, seq INTEGER NOT NULL, PRIMARY KEY (name, seq)) STRICT, WITHOUT ROWID

-- name: create_history_wall
-- So that what is too old is found without looking at the rest.
CREATE INDEX history_by_wall ON history (wall_ms)

-- name: create_history_seq
-- So that what is pruned by number takes its names along.
CREATE INDEX history_name_by_seq ON history_name (seq)

-- name: create_share
-- Whom a record of the history is counted against, and for how many bytes.
CREATE TABLE history_share (seq INTEGER PRIMARY KEY, who TEXT NOT NULL, bytes INTEGER NOT NULL) STRICT

-- name: create_share_who
-- So that the eldest of one are found without looking at the rest.
CREATE INDEX history_share_by_who ON history_share (who, seq)

-- name: create_share_sum
-- How much of the history each has left.
CREATE TABLE history_sum (who TEXT PRIMARY KEY, records INTEGER NOT NULL, bytes INTEGER NOT NULL) STRICT, WITHOUT ROWID

-- name: create_share_sum_records
-- So that whoever has left the most records is found without looking at the rest.
CREATE INDEX history_sum_by_records ON history_sum (records)

-- name: create_share_sum_bytes
-- The same in bytes.
CREATE INDEX history_sum_by_bytes ON history_sum (bytes)

-- name: create_share_added
-- The sums are in step with the shares, in the same transaction. How large all is together is a scalar.
CREATE TRIGGER history_share_added AFTER INSERT ON history_share BEGIN
    INSERT INTO history_sum (who, records, bytes) VALUES (new.who, 1, new.bytes)
        ON CONFLICT (who) DO UPDATE SET records = records + 1, bytes = bytes + excluded.bytes;
    INSERT INTO meta (key, value) VALUES ('history_bytes', new.bytes)
        ON CONFLICT (key) DO UPDATE SET value = value + excluded.value;
END

-- name: create_share_dropped
-- The same. Who has left nothing has no sum.
CREATE TRIGGER history_share_dropped AFTER DELETE ON history_share BEGIN
    UPDATE history_sum SET records = records - 1, bytes = bytes - old.bytes WHERE who = old.who;
    DELETE FROM history_sum WHERE who = old.who AND records = 0;
    UPDATE meta SET value = value - old.bytes WHERE key = 'history_bytes';
END

-- name: read_meta
-- One scalar.
SELECT value FROM meta WHERE key = ?

-- name: write_meta
-- Set one scalar.
INSERT INTO meta (key, value) VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value

-- name: add_meta
-- Add to one scalar.
INSERT INTO meta (key, value) VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value = value + excluded.value

-- name: append_batch
-- The write that every answer waits for.
INSERT INTO batch (first_seq, last_seq, body) VALUES (?, ?, ?)

-- name: read_batches
-- The records after the snapshot, in order.
SELECT first_seq, last_seq, body FROM batch WHERE first_seq > ? ORDER BY first_seq

-- name: read_batches_backwards
-- The newest first, for history that is not yet in its own table.
SELECT first_seq, body FROM batch WHERE first_seq > ? AND first_seq < ? ORDER BY first_seq DESC

-- name: read_batch_end
-- The last number of the batch that a record would be in.
SELECT last_seq FROM batch WHERE first_seq <= ? ORDER BY first_seq DESC LIMIT 1

-- name: read_next_batch
-- The first of what a snapshot will stand for and that was not looked at yet.
SELECT last_seq, body FROM batch WHERE first_seq > ? AND first_seq <= ? ORDER BY first_seq LIMIT 1

-- name: read_batch_sizes
-- Some of what the snapshot stands for, and how large it is.
SELECT first_seq, length(body) FROM batch WHERE first_seq <= ? ORDER BY first_seq LIMIT ?

-- name: drop_batch
-- Drop what the snapshot stands for.
DELETE FROM batch WHERE first_seq = ?

-- name: write_part
-- One part of a snapshot in the making.
INSERT INTO snapshot_part (upto, part, body) VALUES (?, ?, ?)

-- name: read_parts
-- The snapshot that counts.
SELECT part, body FROM snapshot_part WHERE upto = ? ORDER BY part

-- name: read_part_sizes
-- Some parts of snapshots that do not count, or no longer, and how large they are.
SELECT upto, part, length(body) FROM snapshot_part WHERE upto <> ? LIMIT ?

-- name: drop_part
-- Drop a part of a snapshot.
DELETE FROM snapshot_part WHERE upto = ? AND part = ?

-- name: write_history
-- Keep a record; a compaction that was cut short is done over, and finds it there.
INSERT OR IGNORE INTO history (seq, wall_ms, body) VALUES (?, ?, ?)

-- name: write_history_name
-- Keep which names it concerns.
INSERT OR IGNORE INTO history_name (name, seq) VALUES (?, ?)

-- name: read_history
-- History of all names, newest first.
SELECT seq, wall_ms, body FROM history WHERE seq <= ? AND seq < ? ORDER BY seq DESC LIMIT ?

-- name: read_history_of_name
-- History of one name, newest first.
SELECT h.seq, h.wall_ms, h.body FROM history_name AS n JOIN history AS h ON h.seq = n.seq
WHERE n.name = ? AND n.seq <= ? AND n.seq < ? ORDER BY n.seq DESC LIMIT ?

-- name: read_all_history
-- All that is kept up to a number, oldest first.
SELECT seq, wall_ms, body FROM history WHERE seq <= ? ORDER BY seq

-- name: read_history_names
-- The names one record is listed under.
SELECT name FROM history_name WHERE seq = ?

-- name: read_some_history_names
-- Some of them.
SELECT name FROM history_name WHERE seq = ? LIMIT ?

-- name: read_newest_history
-- The newest number in the history.
SELECT max(seq) FROM history

-- name: read_uncounted_history
-- Some of the history up to a number, newest first, and how large each record is.
SELECT seq, length(body) FROM history WHERE seq <= ? ORDER BY seq DESC LIMIT ?

-- name: write_share
-- Count a record against somebody; a compaction that was cut short is done over, and finds it there.
INSERT INTO history_share (seq, who, bytes) VALUES (?, ?, ?) ON CONFLICT (seq) DO NOTHING

-- name: drop_share
-- Count a record no more.
DELETE FROM history_share WHERE seq = ?

-- name: read_share_totals
-- How many records are counted and for how many bytes, and whether the sums say the same.
SELECT count(*), coalesce(sum(bytes), 0), NOT EXISTS (
    SELECT who, count(*), sum(bytes) FROM history_share GROUP BY who EXCEPT SELECT who, records, bytes FROM history_sum
) FROM history_share

-- name: read_largest_by_records
-- Who has left the most records.
SELECT who, records FROM history_sum ORDER BY records DESC LIMIT ?

-- name: read_largest_by_bytes
-- Who has left the most bytes.
SELECT who, bytes FROM history_sum ORDER BY bytes DESC LIMIT ?

-- name: read_eldest_of
-- Some of what somebody has left, eldest first.
SELECT seq, bytes FROM history_share WHERE who = ? AND seq > ? ORDER BY seq LIMIT ?

-- name: read_overdue_history
-- Some of the history that is too old.
SELECT seq FROM history WHERE wall_ms < ? ORDER BY wall_ms LIMIT ?

-- name: drop_history
-- Forget a record.
DELETE FROM history WHERE seq = ?

-- name: drop_history_name
-- Forget which names it concerned.
DELETE FROM history_name WHERE name = ? AND seq = ?

-- name: check_meta
-- Ask SQLite whether a table that is needed to start is sound; the history can be long and is left out.
PRAGMA integrity_check('meta')

-- name: check_batch
-- The same.
PRAGMA integrity_check('batch')

-- name: check_parts
-- The same.
PRAGMA integrity_check('snapshot_part')

-- name: check_integrity
-- Ask SQLite whether the file is sound.
PRAGMA integrity_check(10)

-- name: read_history_after
-- History of all names from a number on, oldest first.
SELECT seq, body FROM history WHERE seq > ? AND seq <= ? ORDER BY seq LIMIT ?

-- name: read_batch_after
-- The batch that holds the first record after a number.
SELECT last_seq, body FROM batch WHERE last_seq > ? ORDER BY first_seq LIMIT 1
