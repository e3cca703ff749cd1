-- Every statement of the archive. Each has a name and says what it is for; Python never builds SQL.

-- name: create_meta
-- One row per scalar: the schema, whose archive it is, how far it reaches, how much state and history it has.
CREATE TABLE meta (key TEXT PRIMARY KEY, value INTEGER NOT NULL) STRICT, WITHOUT ROWID

-- name: create_tables
-- The tables of the state, by number. The first is the head.
CREATE TABLE tables (number INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE) STRICT

-- name: create_state
-- The state: one row per value. Places rise within a table, and the number of the table is their upper part.
CREATE TABLE state (
    place INTEGER PRIMARY KEY, number INTEGER NOT NULL, key BLOB NOT NULL, value BLOB NOT NULL,
    checksum INTEGER NOT NULL, UNIQUE (number, key)
) STRICT

-- name: create_history
-- Records that outlive the tail, one row each, by number, with whom they are counted against.
CREATE TABLE history (
    seq INTEGER PRIMARY KEY, wall_ms INTEGER NOT NULL, who INTEGER NOT NULL, body BLOB NOT NULL
) STRICT

-- name: create_history_who
-- So that the eldest of one are found without looking at the rest.
CREATE INDEX history_by_who ON history (who)

-- name: create_who
-- How much of the history each has left.
CREATE TABLE who (
    id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, records INTEGER NOT NULL, bytes INTEGER NOT NULL
) STRICT

-- name: create_stretch
-- The earliest wall time among the records of each stretch of 1,024 numbers: a wall clock may be set back.
CREATE TABLE stretch (number INTEGER PRIMARY KEY, wall_ms INTEGER NOT NULL) STRICT

-- name: create_name
-- Which records concern a name. In segments of 131,072 numbers: writing touches the newest ones, however long history is.
-- `until` is for a grant: the record that ended it, or 2^62 while it lives. `began` is for an end: the grant that it ended.
CREATE TABLE name (
    segment INTEGER NOT NULL, name TEXT NOT NULL, seq INTEGER NOT NULL, until INTEGER, began INTEGER,
    PRIMARY KEY (segment, name, seq)
) STRICT, WITHOUT ROWID

-- name: create_segment
-- The segments there are, and the last end of a grant of each that has ended: none that was over by then is looked at.
CREATE TABLE segment (id INTEGER PRIMARY KEY, until INTEGER NOT NULL) STRICT

-- name: create_living
-- The grant of each name that is held.
CREATE TABLE living (name TEXT PRIMARY KEY, seq INTEGER NOT NULL) STRICT, WITHOUT ROWID

-- name: create_grant_kept
-- Grants that history has no more, and whose lease lives, or whose end it has: for how many names they are needed.
CREATE TABLE grant_kept (seq INTEGER PRIMARY KEY, names INTEGER NOT NULL, body BLOB NOT NULL) STRICT

-- name: read_meta
-- One scalar.
SELECT value FROM meta WHERE key = ?

-- name: read_all_meta
-- All of them.
SELECT key, value FROM meta

-- name: write_meta
-- Set one scalar.
INSERT INTO meta (key, value) VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value

-- name: read_tables
-- The tables of the state.
SELECT number, name FROM tables ORDER BY number

-- name: write_table
-- A table that was not there.
INSERT INTO tables (number, name) VALUES (?, ?)

-- name: read_state_after
-- Some values of a table, in their order.
SELECT place, key, value, checksum FROM state WHERE place > ? AND place < ? ORDER BY place LIMIT ?

-- name: read_last_ordinal
-- The last place of a table.
SELECT max(place) FROM state WHERE place >= ? AND place < ?

-- name: read_ordinal
-- Where a value stands, and its checksum.
SELECT place, checksum FROM state WHERE number = ? AND key = ?

-- name: read_value
-- A value by its key.
SELECT value FROM state WHERE number = ? AND key = ?

-- name: write_value
-- A value that was not there.
INSERT INTO state (place, number, key, value, checksum) VALUES (?, ?, ?, ?, ?)

-- name: change_value
-- A value that was there.
UPDATE state SET value = ?, checksum = ? WHERE place = ?

-- name: drop_value
-- A value that is gone.
DELETE FROM state WHERE place = ?

-- name: write_history
-- Keep a record.
INSERT INTO history (seq, wall_ms, who, body) VALUES (?, ?, ?, ?)

-- name: drop_history
-- Forget a record.
DELETE FROM history WHERE seq = ?

-- name: read_history
-- History of all names, newest first.
SELECT seq, wall_ms, body FROM history WHERE seq <= ? AND seq < ? ORDER BY seq DESC LIMIT ?

-- name: read_history_of_name
-- History of one name, newest first.
SELECT h.seq, h.wall_ms, h.body
FROM segment AS s CROSS JOIN name AS n ON n.segment = s.id CROSS JOIN history AS h ON h.seq = n.seq
WHERE s.id <= ? >> 17 AND n.name = ? AND n.seq <= ? AND n.seq < ? ORDER BY s.id DESC, n.seq DESC LIMIT ?

-- name: read_history_after
-- History of all names from a number on, oldest first.
SELECT seq, body FROM history WHERE seq > ? AND seq <= ? ORDER BY seq LIMIT ?

-- name: read_all_history
-- All that is kept, oldest first.
SELECT seq, wall_ms, who, body FROM history ORDER BY seq

-- name: has_history
-- Whether a record is kept.
SELECT 1 FROM history WHERE seq = ?

-- name: read_body
-- A grant, in the history or kept beside it.
SELECT body FROM history WHERE seq = ?1 UNION ALL SELECT body FROM grant_kept WHERE seq = ?1

-- name: read_oldest_of
-- What somebody has left, eldest first.
SELECT seq, body FROM history WHERE who = ? ORDER BY seq

-- name: read_who
-- How much of the history each has left.
SELECT id, name, records, bytes FROM who

-- name: write_who
-- Somebody's sums.
INSERT INTO who (id, name, records, bytes) VALUES (?, ?, ?, ?)
ON CONFLICT (id) DO UPDATE SET records = excluded.records, bytes = excluded.bytes

-- name: drop_who
-- Who has left nothing has no sums.
DELETE FROM who WHERE id = ?

-- name: write_block
-- The earliest wall time of a stretch that may be there.
INSERT INTO stretch (number, wall_ms) VALUES (?, ?)
ON CONFLICT (number) DO UPDATE SET wall_ms = min(wall_ms, excluded.wall_ms)

-- name: change_block
-- The earliest wall time of what is left of a stretch.
UPDATE stretch SET wall_ms = ? WHERE number = ?

-- name: drop_block
-- A stretch of which nothing is left.
DELETE FROM stretch WHERE number = ?

-- name: read_overdue_blocks
-- The stretches that have something too old.
SELECT number FROM stretch WHERE wall_ms < ? ORDER BY number LIMIT ?

-- name: read_overdue_history
-- Some of the records of a stretch that are too old.
SELECT seq, who, body FROM history WHERE seq >= ? AND seq < ? AND wall_ms < ? ORDER BY seq LIMIT ?

-- name: read_earliest
-- The earliest wall time in a stretch.
SELECT min(wall_ms) FROM history WHERE seq >= ? AND seq < ?

-- name: read_block_by
-- The last stretch up to a number that has a record of no later than a wall time.
SELECT number FROM stretch WHERE wall_ms <= ? AND number <= ? ORDER BY number DESC LIMIT 1

-- name: read_last_by
-- The last record in a stretch of no later than a wall time.
SELECT max(seq) FROM history WHERE seq >= ? AND seq < ? AND seq <= ? AND wall_ms <= ?

-- name: read_newest_wall
-- The wall time of the newest record.
SELECT wall_ms FROM history ORDER BY seq DESC LIMIT 1

-- name: read_first_history
-- The eldest record.
SELECT min(seq) FROM history

-- name: drop_blocks_before
-- Stretches of which nothing is left.
DELETE FROM stretch WHERE number < ?

-- name: write_name
-- Keep that a record concerns a name.
INSERT INTO name (segment, name, seq, until, began) VALUES (?, ?, ?, ?, ?)

-- name: end_name
-- A grant has ended.
UPDATE name SET until = ? WHERE segment = ? AND name = ? AND seq = ?

-- name: read_name
-- What is known of a record and one of its names.
SELECT until, began FROM name WHERE segment = ? AND name = ? AND seq = ?

-- name: drop_name
-- Forget that a record concerns a name.
DELETE FROM name WHERE segment = ? AND name = ? AND seq = ?

-- name: read_segments
-- The segments there are, the eldest first.
SELECT id FROM segment ORDER BY id

-- name: write_segment
-- A segment, and a last end that it may have.
INSERT INTO segment (id, until) VALUES (?, ?) ON CONFLICT (id) DO UPDATE SET until = max(until, excluded.until)

-- name: has_names
-- Whether a segment has anything.
SELECT 1 FROM name WHERE segment = ? LIMIT 1

-- name: drop_segment
-- A segment of which nothing is left.
DELETE FROM segment WHERE id = ?

-- name: read_living
-- The grant of a name that is held.
SELECT seq FROM living WHERE name = ?

-- name: read_some_living
-- Some names that are held, and their grants.
SELECT name, seq FROM living WHERE name > ? ORDER BY name LIMIT ?

-- name: write_living
-- A name is held.
INSERT INTO living (name, seq) VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET seq = excluded.seq

-- name: drop_living
-- A name is held no more.
DELETE FROM living WHERE name = ?

-- name: read_held_now
-- Names that are held, from one on, up to another, by a grant up to a number.
SELECT name, seq, NULL FROM living WHERE name >= ? AND name < ? AND seq <= ? ORDER BY name

-- name: read_segments_until
-- The segments up to one that have a grant which ended after a number.
SELECT id FROM segment WHERE id <= ? AND until > ? ORDER BY id

-- name: read_held_then
-- Names of a segment, from one on, up to another, whose grant was up to a number, and has ended after it.
SELECT name, seq, NULL FROM name
WHERE segment = ? AND name >= ? AND name < ? AND seq <= ? AND until > ? AND until < 4611686018427387904 ORDER BY name

-- name: write_retained_grant
-- Keep a grant that history has no more.
INSERT INTO grant_kept (seq, names, body) VALUES (?, ?, ?)

-- name: read_retained_grant
-- For how many names a grant is kept.
SELECT names FROM grant_kept WHERE seq = ?

-- name: change_retained_grant
-- A grant is needed for so many names now.
UPDATE grant_kept SET names = ? WHERE seq = ?

-- name: drop_retained_grant
-- A grant is not needed any more.
DELETE FROM grant_kept WHERE seq = ?

-- name: read_living_grants
-- Every name that is held, its grant, and the record of that.
SELECT l.name, l.seq, coalesce(h.body, k.body)
FROM living AS l LEFT JOIN history AS h ON h.seq = l.seq LEFT JOIN grant_kept AS k ON k.seq = l.seq ORDER BY l.name

-- name: count_living
-- How many grants live.
SELECT count(*) FROM name WHERE until = 4611686018427387904

-- name: count_names
-- How many rows of names there are, how many belong to grants beside the history, and of how many such grants not all do.
SELECT (SELECT count(*) FROM name), (SELECT coalesce(sum(names), 0) FROM grant_kept), (
    SELECT count(*) FROM grant_kept AS k LEFT JOIN (
        SELECT seq, count(*) AS names FROM name WHERE seq IN (SELECT seq FROM grant_kept) GROUP BY seq
    ) AS n ON n.seq = k.seq WHERE k.names IS NOT coalesce(n.names, 0))

-- name: check_walls
-- Records that are earlier than their stretch says.
SELECT h.seq FROM history AS h JOIN stretch AS s ON s.number = h.seq >> 10 WHERE s.wall_ms > h.wall_ms
UNION ALL SELECT seq FROM history WHERE seq >> 10 NOT IN (SELECT number FROM stretch)

-- name: check_segments
-- Rows of names in the wrong segment, or in one that is not listed.
SELECT seq, name FROM name WHERE segment != seq >> 17 OR segment NOT IN (SELECT id FROM segment)

-- name: check_untils
-- Grants that ended after the last end of their segment, or whose end, as far as it is kept, does not say so.
SELECT g.until, g.seq, g.name FROM name AS g
LEFT JOIN segment AS s ON s.id = g.segment
LEFT JOIN name AS e ON e.segment = g.until >> 17 AND e.name = g.name AND e.seq = g.until
WHERE g.until < 4611686018427387904 AND (s.until < g.until OR (e.seq IS NULL AND g.until IN (SELECT seq FROM history))
OR (e.seq IS NOT NULL AND e.began IS NOT g.seq))

-- name: check_begans
-- Ends whose grant does not say that they ended it.
SELECT e.began, e.name, e.seq FROM name AS e WHERE e.began IS NOT NULL AND NOT EXISTS (
    SELECT 1 FROM name AS g WHERE g.segment = e.began >> 17 AND g.name = e.name AND g.seq = e.began AND g.until = e.seq)

-- name: check_living
-- Names that are held by a grant that has ended.
SELECT l.name, l.seq FROM living AS l
LEFT JOIN name AS g ON g.segment = l.seq >> 17 AND g.name = l.name AND g.seq = l.seq
WHERE g.until IS NOT 4611686018427387904

-- name: check_integrity
-- Ask SQLite whether the file is sound.
PRAGMA integrity_check(10)
