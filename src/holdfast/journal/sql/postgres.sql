-- Every statement of the store in PostgreSQL but for the archive's. Each has a name and says what it is for.
-- `{s}` stands for the schema: it is put in once, when the statements are loaded. Python builds nothing else.

-- name: lock_creation
-- Of several nodes that find no authority one makes it, and the others find it made. The lock ends with the transaction.
SELECT pg_advisory_xact_lock(7201901)

-- name: has_schema
-- Whether the schema is there: somebody may have made it for us, with rights that we do not have.
SELECT EXISTS (SELECT 1 FROM pg_namespace WHERE nspname = $1)

-- name: has_leadership
-- Whether an authority is there. Asked of the catalogue itself: `to_regclass` may remember that there was none.
SELECT EXISTS (SELECT 1 FROM pg_tables WHERE schemaname = $1 AND tablename = 'seat')

-- name: create_schema
-- Room for our tables.
CREATE SCHEMA {s}

-- name: create
-- The tables. `epoch` is part of the seat's key, so that a slice of the archive can hold up a takeover and never an append;
-- what an append changes is in no index, and most of the seat's page is left empty, so that it is changed in place (N-4).
CREATE TABLE {s}.authority (
    one boolean PRIMARY KEY DEFAULT true CHECK (one),
    id text NOT NULL, key bytea NOT NULL, made_wall_ms bigint NOT NULL, schema_version integer NOT NULL
);
CREATE TABLE {s}.seat (
    id boolean NOT NULL DEFAULT true CHECK (id), epoch bigint NOT NULL, PRIMARY KEY (id, epoch),
    authority text NOT NULL, tenure text NOT NULL, last_seq bigint NOT NULL, beat bigint NOT NULL, now_ms bigint NOT NULL,
    held boolean NOT NULL, was_held boolean NOT NULL, node text NOT NULL, process text NOT NULL, url text NOT NULL, version text NOT NULL,
    since_wall_ms bigint NOT NULL, format integer NOT NULL,
    system_id bigint NOT NULL, timeline bigint NOT NULL, database_oid bigint NOT NULL, table_oid bigint NOT NULL,
    has_standby boolean NOT NULL, wants_jump boolean NOT NULL, jumps bigint NOT NULL
) WITH (fillfactor = 20);
CREATE UNIQUE INDEX seat_one ON {s}.seat (id);
CREATE TABLE {s}.node (
    node text PRIMARY KEY, process text NOT NULL, url text NOT NULL, version text NOT NULL, format_max integer NOT NULL,
    tokens text NOT NULL, seen timestamptz NOT NULL
);
CREATE TABLE {s}.batch (
    first_seq bigint PRIMARY KEY, last_seq bigint NOT NULL, epoch bigint NOT NULL, body bytea NOT NULL
);
ALTER TABLE {s}.batch ALTER body SET STORAGE EXTERNAL

-- name: ask_server
-- What the server is, and what it promises. `pg_walfile_name` tells the timeline and needs no privilege.
SELECT current_setting('synchronous_commit') AS synchronous_commit, current_setting('fsync') AS fsync,
    current_setting('full_page_writes') AS full_page_writes,
    current_setting('default_transaction_isolation') AS default_transaction_isolation,
    current_setting('statement_timeout') AS statement_timeout, current_setting('lock_timeout') AS lock_timeout,
    current_setting('idle_in_transaction_session_timeout') AS idle_in_transaction_session_timeout,
    current_setting('synchronous_standby_names') AS synchronous_standby_names,
    current_setting('server_version_num')::integer AS version, pg_is_in_recovery() AS is_standby,
    pg_backend_pid() AS pid, extract(epoch FROM pg_postmaster_start_time())::text AS started,
    (SELECT system_identifier FROM pg_control_system()) AS system_id,
    CASE WHEN pg_is_in_recovery() THEN 0
        ELSE ('x' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8))::bit(32)::bigint END AS timeline,
    (SELECT oid::bigint FROM pg_database WHERE datname = current_database()) AS database_oid,
    coalesce(to_regclass($1)::oid::bigint, 0) AS table_oid

-- name: begin_instant
-- What is read from here on is as of one instant. Nothing is locked, and the connection is closed at the end.
BEGIN TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY

-- name: stay_at_instant
-- Whoever takes all that there is may be slow. It holds up nobody, so it may take its time.
SET LOCAL idle_in_transaction_session_timeout = '10min'

-- name: begin
-- Only whoever makes the tables has a transaction over several messages.
BEGIN

-- name: commit
-- Its end.
COMMIT

-- name: write_authority
-- The authority: its id and its key are made with the tables, and never changed.
INSERT INTO {s}.authority (id, key, made_wall_ms, schema_version) VALUES ($1, $2, $3, $4)

-- name: create_leadership
-- The seat, before anybody had it, with the marks of the server that it was made on (N-22).
INSERT INTO {s}.seat (
    epoch, authority, tenure, last_seq, beat, now_ms, held, was_held, node, process, url, version, since_wall_ms, format,
    system_id, timeline, database_oid, table_oid, has_standby, wants_jump, jumps
) VALUES (
    0, $1, '', 0, 0, 0, false, false, '', '', '', '', 0, $2,
    $3, $4, $5, to_regclass($6)::oid::bigint, current_setting('synchronous_standby_names') <> '', false, 0
)

-- name: read_leadership
-- The seat as any node may see it, and whose it is.
SELECT s.*, s.tenure AS term_id, s.beat AS heartbeat, s.jumps AS token_gaps, s.wants_jump AS wants_token_gap,
    a.id AS made_as, a.schema_version
FROM {s}.seat AS s CROSS JOIN {s}.authority AS a

-- name: acquire_leadership
-- Become the leader (N-2). It names what was seen: epoch ($1), tenure ($2) and, of one who holds it, the beat ($4). So a
-- late copy of it deposes nobody. It finds no row, too, for a node that is too old for what is stored ($10), for one that
-- would write what another live node cannot read (N-36), and for one that knows more than the store has ($13) or meets it
-- on another server than before ($14 to $17) while nobody said that it may go on ($12, N-23).
UPDATE {s}.seat SET
    epoch = epoch + 1, tenure = $3, beat = beat + 1, was_held = held, held = true, node = $5, process = $6, url = $7,
    version = $8, since_wall_ms = $9, format = $10
WHERE epoch = $1 AND tenure = $2 AND (NOT held OR beat = $4) AND format <= $10 AND authority = $11
    AND (format = $10 OR NOT EXISTS (
        SELECT 1 FROM {s}.node AS n WHERE n.format_max < $10 AND n.seen > now() - interval '10 seconds'
    ))
    AND (wants_jump OR $12 OR (
        last_seq >= $13 AND system_id = $14 AND (timeline = $15 OR has_standby)
        AND database_oid = $16 AND table_oid = $17
    ))
RETURNING epoch, last_seq, now_ms, was_held, jumps,
    wants_jump OR last_seq < $13 OR (system_id, timeline, database_oid, table_oid) <> ($14, $15, $16, $17)
        AS needs_token_gap

-- name: end_blockers
-- End whoever keeps a session from going on (N-3): a leader that was stopped with half of a statement sent keeps its lock.
SELECT pid, pg_terminate_backend(pid) AS is_ended FROM unnest(pg_blocking_pids($1)) AS pid

-- name: append
-- The write that every answer waits for. It finds the seat as ours, and locks it, in the statement that adds the batch:
-- whoever takes the seat comes before it or after it. No row: it is not ours, or another copy of this batch came first.
WITH mine AS (
    UPDATE {s}.seat SET
        last_seq = $3, beat = beat + 1, now_ms = greatest(now_ms, $6),
        has_standby = current_setting('synchronous_standby_names') <> ''
    WHERE epoch = $1 AND tenure = $5 AND last_seq = $2::bigint - 1 RETURNING 1
)
INSERT INTO {s}.batch (first_seq, last_seq, epoch, body) SELECT $2, $3, $1, $4 FROM mine RETURNING last_seq

-- name: append_restored
-- The same for the first batch after the store may have lost records. With it the marks of the server that it is on now
-- begin to count, and never before (N-22).
WITH mine AS (
    UPDATE {s}.seat SET
        last_seq = $3, beat = beat + 1, now_ms = greatest(now_ms, $6),
        has_standby = current_setting('synchronous_standby_names') <> '',
        system_id = $7, timeline = $8, database_oid = $9, table_oid = $10, wants_jump = false, jumps = jumps + 1
    WHERE epoch = $1 AND tenure = $5 AND last_seq = $2::bigint - 1 RETURNING 1
)
INSERT INTO {s}.batch (first_seq, last_seq, epoch, body) SELECT $2, $3, $1, $4 FROM mine RETURNING last_seq

-- name: confirm
-- Prove the seat, and ask what is durable, by a write (N-7, N-9, N-15): it waits for replicas, and so for all before it.
-- No row: the seat is not ours. Until a loss is on record ($4), whether there was a standby belongs to the old marks.
UPDATE {s}.seat SET
    beat = beat + 1, now_ms = greatest(now_ms, $3),
    has_standby = CASE WHEN $4 THEN has_standby ELSE current_setting('synchronous_standby_names') <> '' END
WHERE epoch = $1 AND tenure = $2 RETURNING last_seq, now_ms

-- name: vacate
-- Give the seat back. A tenure is named by nothing else, so this cannot be another's.
UPDATE {s}.seat SET held = false, beat = beat + 1 WHERE tenure = $1 AND held RETURNING epoch

-- name: read_key
-- The authority's key, perhaps sealed.
SELECT key FROM {s}.authority

-- name: read_size
-- How many bytes the store has on the server's disk.
SELECT coalesce(sum(pg_total_relation_size(c.oid)), 0)::bigint AS size_bytes
FROM pg_class AS c WHERE c.relnamespace = to_regnamespace($1) AND c.relkind = 'r'

-- name: report
-- A node tells of itself. Who has not for a day is forgotten.
WITH old AS (DELETE FROM {s}.node WHERE seen < now() - interval '1 day' AND node <> $1)
INSERT INTO {s}.node (node, process, url, version, format_max, tokens, seen) VALUES ($1, $2, $3, $4, $5, $6, now())
ON CONFLICT (node) DO UPDATE SET
    process = excluded.process, url = excluded.url, version = excluded.version, format_max = excluded.format_max,
    tokens = excluded.tokens, seen = excluded.seen

-- name: leave
-- A process that ends is nobody to wait for.
DELETE FROM {s}.node WHERE node = $1 AND process = $2

-- name: read_peers
-- The nodes that told of themselves, the newest first.
SELECT node, process, url, version, format_max, tokens, (extract(epoch FROM now() - seen) * 1000)::bigint AS seen_ms_ago
FROM {s}.node ORDER BY seen DESC, node LIMIT 1000
