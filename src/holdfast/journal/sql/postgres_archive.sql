-- Every statement of the archive in PostgreSQL. Each has a name and says what it is for; `{s}` stands for the schema.

-- name: create_archive
-- How far the archive reaches (not in the seat's row: archiving never waits for an append, nor holds one up), the state,
-- the history, and who held what.
CREATE TABLE {s}.archive (
    one boolean PRIMARY KEY DEFAULT true CHECK (one),
    upto bigint NOT NULL, pruned bigint NOT NULL, records bigint NOT NULL, bytes bigint NOT NULL
);
INSERT INTO {s}.archive VALUES (true, 0, 0, 0, 0);
CREATE TABLE {s}.value (
    tbl text COLLATE "C" NOT NULL, key bytea NOT NULL, place bigint NOT NULL, value bytea NOT NULL,
    PRIMARY KEY (tbl, key), UNIQUE (tbl, place)
);
CREATE TABLE {s}.history (
    seq bigint PRIMARY KEY, wall_ms bigint NOT NULL, principal text COLLATE "C" NOT NULL, weight bigint NOT NULL,
    body bytea NOT NULL
)
