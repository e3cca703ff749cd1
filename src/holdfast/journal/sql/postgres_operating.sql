-- What operators ask of the store and do to it, beside its nodes. Each has a name and says what it is for; `{s}` stands
-- for the schema.

-- name: read_replicas
-- The standbys of the server. A role that may not see them has a row for each, with nothing in it.
SELECT coalesce(application_name, '') AS name, coalesce(state, '') AS state, coalesce(sync_state, '') AS sync_state
FROM pg_stat_replication ORDER BY 1 LIMIT 100

-- name: read_tail_size
-- How many records are not archived yet, and how many bytes they have.
SELECT coalesce(sum(b.last_seq - b.first_seq + 1), 0)::bigint AS records,
    coalesce(sum(octet_length(b.body)), 0)::bigint AS bytes
FROM {s}.batch b CROSS JOIN {s}.archive a WHERE b.first_seq > a.upto

-- name: ping
-- How long the way to the server and back takes.
SELECT 1

-- name: mark_restored
-- An operator says that the store was restored from a backup: the next tenure begins with that as a record (N-22). It
-- takes the seat and gives it back in one step, and names what was seen, as whoever takes it does: a leader that lives
-- beats meanwhile, and then this finds no row. A leader that only sleeps is deposed by it.
UPDATE {s}.seat SET
    epoch = epoch + 1, tenure = $4, beat = beat + 1, was_held = held, held = false, wants_jump = true
WHERE epoch = $1 AND tenure = $2 AND (NOT held OR beat = $3) RETURNING epoch, last_seq

-- name: fill_without_timeouts
-- Whoever fills an empty store holds up nobody, so its one transaction may take its time between two messages.
SELECT set_config('idle_in_transaction_session_timeout', '0', true)

-- name: fill_tail
-- Records that a move brings, which are not archived.
INSERT INTO {s}.batch (first_seq, last_seq, epoch, body) VALUES ($1, $2, $3, $4)

-- name: fill_leadership
-- Let nobody have the seat: what a move brought ends here, and the next tenure begins after it.
UPDATE {s}.seat SET last_seq = $3, now_ms = $4, held = false, was_held = false WHERE epoch = $1 AND tenure = $2

-- name: fill_acquire_leadership
-- Let the seat be the mover's while it fills the store.
UPDATE {s}.seat SET epoch = $1, tenure = $2

-- name: fill_values
-- Put some staged values in place. Returns how many rows the state has more.
SELECT {s}.apply_values($1, $2) AS grown

-- name: fill_records
-- Take in some staged records.
SELECT {s}.apply_records($1, $2)

-- name: fill_drop_staged
-- They are in place.
WITH gone AS (DELETE FROM {s}.staged_values) DELETE FROM {s}.staged_records

-- name: fill_archive
-- Up to where the history of a move is not kept any more, and how many rows its state has beside the head.
UPDATE {s}.archive SET pruned = $1, state_rows = state_rows + $2

-- name: fill_read_living
-- Some names after one that are held by the history that a move brought, and the number of each grant.
SELECT name, seq FROM {s}.living WHERE name > $1 ORDER BY name LIMIT $2

-- name: fill_read_grants
-- Some grants of that history, by number.
SELECT seq, body FROM {s}.history WHERE seq = ANY ($1::bigint[])

-- name: fill_end_grants
-- Let some names have been held by a grant until a number, though the history that a move brought does not have the end.
WITH g AS (
    SELECT name, seq, until FROM unnest($1::bytea[], $2::bigint[], $3::bigint[]) AS x(name, seq, until)
), ended AS (
    UPDATE {s}.entry e SET until = g.until FROM g WHERE e.segment = g.seq >> 17 AND e.name = g.name AND e.seq = g.seq
), freed AS (
    DELETE FROM {s}.living l USING g WHERE l.name = g.name
)
INSERT INTO {s}.segment AS known (id, until) SELECT seq >> 17, max(until) FROM g GROUP BY 1
ON CONFLICT (id) DO UPDATE SET until = greatest(known.until, excluded.until)

-- name: fill_add_grants
-- Let some names be held by grants that the history of a move does not have: they are older than it.
WITH g AS (
    SELECT name, seq, body FROM unnest($1::bytea[], $2::bigint[], $3::bytea[]) AS x(name, seq, body)
), kept AS (
    INSERT INTO {s}.grant_kept (seq, body) SELECT seq, body FROM g
), entered AS (
    INSERT INTO {s}.entry (segment, name, seq, until, began)
    SELECT seq >> 17, name, seq, 4611686018427387904, NULL FROM g
), held AS (
    INSERT INTO {s}.living (name, seq) SELECT name, seq FROM g
)
INSERT INTO {s}.segment (id, until) SELECT DISTINCT seq >> 17, 0 FROM g ON CONFLICT (id) DO NOTHING
