-- Every statement of the store in PostgreSQL but for the archive's. Each has a name and says what it is for.
-- `{s}` stands for the schema: it is put in once, when the statements are loaded. Python builds nothing else.

-- name: lock_creation
-- Of several nodes that find no authority one makes it, and the others find it made. The lock ends with the transaction.
SELECT pg_advisory_xact_lock(7201901)

-- name: has_schema
-- Whether the schema is there: somebody may have made it for us, with rights that we do not have.
SELECT to_regnamespace($1) IS NOT NULL

-- name: has_seat
-- Whether an authority is there.
SELECT to_regclass($1) IS NOT NULL

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
    tenure text NOT NULL, last_seq bigint NOT NULL, beat bigint NOT NULL, now_ms bigint NOT NULL,
    held boolean NOT NULL, node text NOT NULL, process text NOT NULL, url text NOT NULL, version text NOT NULL,
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
