-- Every statement of the archive in PostgreSQL. Each has a name and says what it is for; `{s}` stands for the schema.
--
-- Names and principals are bytes of UTF-8: they sort as Python sorts texts, whatever a database was made with.
-- 4611686018427387904 (2^62) stands for the end of a grant whose lease lives. Errors of ours have the class HF:
-- HF001 the seat is not ours, HF002 the changes do not fit what is archived, HF003 what was staged is not all there.

-- name: create_archive
-- How far the archive reaches (not in the seat's row: archiving never waits for an append, nor holds one up); the state,
-- row by row; the history, and who left how much of it; which records concern a name, and when it was held.
-- `segment` and `stretch` are as in archive.sql: looks pass over the parts of the history that cannot have what is wanted.
-- What a step brings is staged first, many rows in one. After a crash of the server it is gone, and the step is refused.
CREATE TABLE {s}.archive (
    one boolean PRIMARY KEY DEFAULT true CHECK (one),
    upto bigint NOT NULL, pruned bigint NOT NULL, state_rows bigint NOT NULL
);
INSERT INTO {s}.archive VALUES (true, 0, 0, 0);
CREATE TABLE {s}.value (
    tbl text COLLATE "C" NOT NULL, key bytea NOT NULL, place bigint NOT NULL, value bytea NOT NULL,
    checksum bigint NOT NULL, PRIMARY KEY (tbl, key)
) WITH (fillfactor = 70);
CREATE UNIQUE INDEX value_by_place ON {s}.value (tbl, place);
CREATE TABLE {s}.history (
    seq bigint PRIMARY KEY, wall_ms bigint NOT NULL, principal bytea NOT NULL, weight bigint NOT NULL, body bytea NOT NULL
);
CREATE INDEX history_by_principal ON {s}.history (principal, seq);
CREATE TABLE {s}.share (principal bytea PRIMARY KEY, records bigint NOT NULL, bytes bigint NOT NULL);
CREATE TABLE {s}.stretch (number bigint PRIMARY KEY, wall_ms bigint NOT NULL);
CREATE TABLE {s}.entry (
    segment bigint NOT NULL, name bytea NOT NULL, seq bigint NOT NULL, until bigint, began bigint,
    PRIMARY KEY (segment, name, seq)
) WITH (fillfactor = 80);
CREATE INDEX entry_by_seq ON {s}.entry (seq);
CREATE TABLE {s}.segment (id bigint PRIMARY KEY, until bigint NOT NULL);
CREATE TABLE {s}.living (name bytea PRIMARY KEY, seq bigint NOT NULL);
CREATE TABLE {s}.grant_kept (seq bigint PRIMARY KEY, body bytea NOT NULL);
CREATE UNLOGGED TABLE {s}.staged_values (
    tenure text NOT NULL, step bigint NOT NULL, piece bigint NOT NULL, tbl text COLLATE "C" NOT NULL, kind text NOT NULL,
    keys bytea[] NOT NULL, vals bytea[] NOT NULL, sums bigint[] NOT NULL, PRIMARY KEY (tenure, step, piece)
);
ALTER TABLE {s}.staged_values ALTER keys SET STORAGE EXTERNAL, ALTER vals SET STORAGE EXTERNAL;
CREATE UNLOGGED TABLE {s}.staged_records (
    tenure text NOT NULL, step bigint NOT NULL, piece bigint NOT NULL,
    seqs bigint[] NOT NULL, walls_ms bigint[] NOT NULL, principals bytea[] NOT NULL, weights bigint[] NOT NULL,
    bodies bytea[] NOT NULL, names bytea[] NOT NULL, name_seqs bigint[] NOT NULL, marks smallint[] NOT NULL,
    PRIMARY KEY (tenure, step, piece)
);
ALTER TABLE {s}.staged_records ALTER bodies SET STORAGE EXTERNAL, ALTER names SET STORAGE EXTERNAL

-- name: create_archive_refuse_unless_ours
-- The fence of a function that changes the archive. It is called last, so that a takeover waits for no more than a commit;
-- and if the seat was taken meanwhile, all that the function did is undone.
CREATE FUNCTION {s}.refuse_unless_ours(p_epoch bigint, p_tenure text) RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog AS $$
BEGIN
    PERFORM 1 FROM {s}.seat WHERE epoch = p_epoch AND tenure = p_tenure FOR KEY SHARE;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'the seat is not ours' USING ERRCODE = 'HF001';
    END IF;
END $$

-- name: create_archive_apply_values
-- Put the staged values of a step in place: what is gone, what changed (it keeps its place), what is new (behind all
-- others). Returns by how many rows the state has grown.
CREATE FUNCTION {s}.apply_values(p_tenure text, p_step bigint) RETURNS bigint LANGUAGE plpgsql
SET search_path = pg_catalog AS $$
DECLARE
    v_gone bigint; v_changed bigint; v_new bigint; v_count bigint; v_added bigint := 0; v_tbl text; v_place bigint;
BEGIN
    SELECT coalesce(sum(cardinality(keys)) FILTER (WHERE kind = 'gone'), 0),
        coalesce(sum(cardinality(keys)) FILTER (WHERE kind = 'changed'), 0),
        coalesce(sum(cardinality(keys)) FILTER (WHERE kind = 'new'), 0)
    INTO v_gone, v_changed, v_new FROM {s}.staged_values WHERE tenure = p_tenure AND step = p_step;
    DELETE FROM {s}.value v USING {s}.staged_values s CROSS JOIN LATERAL unnest(s.keys) AS k(key)
    WHERE s.tenure = p_tenure AND s.step = p_step AND s.kind = 'gone' AND v.tbl = s.tbl AND v.key = k.key;
    GET DIAGNOSTICS v_count = ROW_COUNT;
    IF v_count <> v_gone THEN
        RAISE EXCEPTION 'of % values that are gone % were there', v_gone, v_count USING ERRCODE = 'HF002';
    END IF;
    UPDATE {s}.value v SET value = k.value, checksum = k.checksum
    FROM {s}.staged_values s CROSS JOIN LATERAL unnest(s.keys, s.vals, s.sums) AS k(key, value, checksum)
    WHERE s.tenure = p_tenure AND s.step = p_step AND s.kind = 'changed' AND v.tbl = s.tbl AND v.key = k.key;
    GET DIAGNOSTICS v_count = ROW_COUNT;
    IF v_count <> v_changed THEN
        RAISE EXCEPTION 'of % values that changed % were there', v_changed, v_count USING ERRCODE = 'HF002';
    END IF;
    FOR v_tbl IN SELECT DISTINCT tbl FROM {s}.staged_values
        WHERE tenure = p_tenure AND step = p_step AND kind = 'new'
    LOOP
        SELECT coalesce(max(place), 0) INTO v_place FROM {s}.value WHERE tbl = v_tbl;
        INSERT INTO {s}.value (tbl, key, place, value, checksum)
        SELECT v_tbl, k.key, v_place + row_number() OVER (ORDER BY s.piece, k.nth), k.value, k.checksum
        FROM {s}.staged_values s
            CROSS JOIN LATERAL unnest(s.keys, s.vals, s.sums) WITH ORDINALITY AS k(key, value, checksum, nth)
        WHERE s.tenure = p_tenure AND s.step = p_step AND s.kind = 'new' AND s.tbl = v_tbl
        ON CONFLICT (tbl, key) DO NOTHING;
        GET DIAGNOSTICS v_count = ROW_COUNT;
        v_added := v_added + v_count;
    END LOOP;
    IF v_added <> v_new THEN
        RAISE EXCEPTION 'of % values that are new % were there', v_new, v_new - v_added USING ERRCODE = 'HF002';
    END IF;
    RETURN v_new - v_gone;
END $$

-- name: create_archive_apply_records
-- Take in the staged records of a step: the history, whose it is, the wall times of its stretches, and its names. A name
-- has a chain of records that end what is held (1 of a mark) or grant it (2). Each ends the grant before it in the chain,
-- and the first that of `living`.
CREATE FUNCTION {s}.apply_records(p_tenure text, p_step bigint) RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog AS $$
BEGIN
    INSERT INTO {s}.history (seq, wall_ms, principal, weight, body)
    SELECT r.seq, r.wall_ms, r.principal, r.weight, r.body FROM {s}.staged_records s
        CROSS JOIN LATERAL unnest(s.seqs, s.walls_ms, s.principals, s.weights, s.bodies)
            AS r(seq, wall_ms, principal, weight, body)
    WHERE s.tenure = p_tenure AND s.step = p_step ORDER BY s.piece, r.seq;
    INSERT INTO {s}.share AS known (principal, records, bytes)
    SELECT r.principal, count(*), sum(r.weight) FROM {s}.staged_records s
        CROSS JOIN LATERAL unnest(s.principals, s.weights) AS r(principal, weight)
    WHERE s.tenure = p_tenure AND s.step = p_step GROUP BY r.principal
    ON CONFLICT (principal) DO UPDATE
    SET records = known.records + excluded.records, bytes = known.bytes + excluded.bytes;
    INSERT INTO {s}.stretch AS known (number, wall_ms)
    SELECT r.seq >> 10, min(r.wall_ms) FROM {s}.staged_records s
        CROSS JOIN LATERAL unnest(s.seqs, s.walls_ms) AS r(seq, wall_ms)
    WHERE s.tenure = p_tenure AND s.step = p_step GROUP BY r.seq >> 10
    ON CONFLICT (number) DO UPDATE SET wall_ms = least(known.wall_ms, excluded.wall_ms);
    WITH row_of AS (
        SELECT n.name, n.seq, n.mark,
            lag(n.seq) OVER w AS before_seq, lag(n.mark) OVER w AS before_mark, lead(n.seq) OVER w AS next_seq
        FROM {s}.staged_records s CROSS JOIN LATERAL unnest(s.names, s.name_seqs, s.marks) AS n(name, seq, mark)
        WHERE s.tenure = p_tenure AND s.step = p_step
        WINDOW w AS (PARTITION BY n.name, n.mark > 0 ORDER BY n.seq)
    ), chain AS MATERIALIZED (
        SELECT r.name, r.seq, r.mark,
            CASE WHEN r.mark & 2 <> 0 THEN coalesce(r.next_seq, 4611686018427387904) END AS until,
            CASE WHEN r.mark = 0 THEN NULL WHEN r.before_seq IS NULL THEN l.seq
                WHEN r.before_mark & 2 <> 0 THEN r.before_seq END AS began,
            r.mark > 0 AND r.before_seq IS NULL AS is_first, r.mark > 0 AND r.next_seq IS NULL AS is_last
        FROM row_of r LEFT JOIN {s}.living l ON l.name = r.name AND r.mark > 0 AND r.before_seq IS NULL
    ), entered AS (
        INSERT INTO {s}.entry (segment, name, seq, until, began)
        SELECT seq >> 17, name, seq, until, began FROM chain
    ), ended AS (
        UPDATE {s}.entry e SET until = c.seq FROM chain c
        WHERE c.is_first AND e.segment = c.began >> 17 AND e.name = c.name AND e.seq = c.began
    ), freed AS (
        DELETE FROM {s}.living l USING chain c WHERE c.is_last AND c.mark & 2 = 0 AND l.name = c.name
    ), held AS (
        INSERT INTO {s}.living (name, seq) SELECT name, seq FROM chain WHERE is_last AND mark & 2 <> 0
        ON CONFLICT (name) DO UPDATE SET seq = excluded.seq
    )
    INSERT INTO {s}.segment AS known (id, until)
    SELECT each.id, max(each.until) FROM (
        SELECT seq >> 17 AS id, 0::bigint AS until FROM chain
        UNION ALL SELECT began >> 17, seq FROM chain WHERE began IS NOT NULL
    ) AS each GROUP BY each.id
    ON CONFLICT (id) DO UPDATE SET until = greatest(known.until, excluded.until);
END $$

-- name: create_archive_apply
-- Let a step count: all that was staged, in one transaction. Whoever else changes the archive waits at its first line.
-- A late copy of a step that was settled finds nothing staged, and one that counts already changes nothing. What was staged
-- is truncated and not deleted: that gives its room back at once.
CREATE FUNCTION {s}.apply_step(
    p_epoch bigint, p_tenure text, p_step bigint, p_pieces bigint, p_upto bigint, p_head bytea, p_checksum bigint
) RETURNS bigint LANGUAGE plpgsql SET search_path = pg_catalog AS $$
DECLARE
    v_upto bigint; v_count bigint; v_grown bigint;
BEGIN
    SELECT upto INTO STRICT v_upto FROM {s}.archive FOR UPDATE;
    IF v_upto >= p_upto THEN
        RETURN v_upto;
    END IF;
    SELECT (SELECT count(*) FROM {s}.staged_values WHERE tenure = p_tenure AND step = p_step)
        + (SELECT count(*) FROM {s}.staged_records WHERE tenure = p_tenure AND step = p_step) INTO v_count;
    IF v_count <> p_pieces THEN
        RAISE EXCEPTION 'of % staged pieces % are there', p_pieces, v_count USING ERRCODE = 'HF003';
    END IF;
    v_grown := {s}.apply_values(p_tenure, p_step);
    PERFORM 1 FROM {s}.value WHERE tbl = 'head';
    IF NOT FOUND THEN
        v_grown := v_grown + 1;
    END IF;
    INSERT INTO {s}.value (tbl, key, place, value, checksum) VALUES ('head', 'head', 1, p_head, p_checksum)
    ON CONFLICT (tbl, key) DO UPDATE SET value = excluded.value, checksum = excluded.checksum;
    PERFORM {s}.apply_records(p_tenure, p_step);
    TRUNCATE {s}.staged_values, {s}.staged_records;
    UPDATE {s}.archive SET upto = p_upto, state_rows = state_rows + v_grown;
    PERFORM {s}.refuse_unless_ours(p_epoch, p_tenure);
    RETURN p_upto;
END $$

-- name: create_archive_settle
-- Let no step of ours be on its way any more: it waits for one that runs, and one that comes late finds nothing staged.
-- Returns how far the archive reaches after that.
CREATE FUNCTION {s}.settle_steps(p_epoch bigint, p_tenure text) RETURNS bigint LANGUAGE plpgsql
SET search_path = pg_catalog AS $$
DECLARE
    v_upto bigint;
BEGIN
    SELECT upto INTO STRICT v_upto FROM {s}.archive FOR UPDATE;
    DELETE FROM {s}.staged_values;
    DELETE FROM {s}.staged_records;
    PERFORM {s}.refuse_unless_ours(p_epoch, p_tenure);
    RETURN v_upto;
END $$

-- name: create_archive_prune
-- Forget some records, with their names. A grant whose lease lives, or whose end is kept, is kept beside the history until
-- that end goes too. Of the given stretches the earliest wall time is found anew. Returns the newest that was ever forgotten.
CREATE FUNCTION {s}.prune(p_epoch bigint, p_tenure text, p_seqs bigint[], p_stretches bigint[]) RETURNS bigint
LANGUAGE plpgsql SET search_path = pg_catalog AS $$
DECLARE
    v_pruned bigint; v_seqs bigint[]; v_let_go bigint[]; v_first bigint;
BEGIN
    SELECT pruned INTO STRICT v_pruned FROM {s}.archive FOR UPDATE;
    SELECT coalesce(array_agg(h.seq), '{}') INTO v_seqs
    FROM unnest(p_seqs) AS g(seq) JOIN {s}.history h ON h.seq = g.seq;
    WITH ended AS (
        SELECT e.name, e.began FROM unnest(v_seqs) AS g(seq) JOIN {s}.entry e ON e.seq = g.seq
        WHERE e.began IS NOT NULL AND NOT EXISTS (SELECT 1 FROM unnest(v_seqs) AS o(seq) WHERE o.seq = e.began)
    ), let_go AS (
        DELETE FROM {s}.entry e USING ended x JOIN {s}.grant_kept k ON k.seq = x.began
        WHERE e.segment = x.began >> 17 AND e.name = x.name AND e.seq = x.began RETURNING e.seq
    )
    SELECT coalesce(array_agg(DISTINCT seq), '{}') INTO v_let_go FROM let_go;
    DELETE FROM {s}.grant_kept k
    WHERE k.seq = ANY (v_let_go) AND NOT EXISTS (SELECT 1 FROM {s}.entry e WHERE e.seq = k.seq);
    WITH needed AS MATERIALIZED (
        SELECT e.seq, e.name FROM unnest(v_seqs) AS g(seq) JOIN {s}.entry e ON e.seq = g.seq
        WHERE e.until = 4611686018427387904 OR (
            e.until IS NOT NULL AND EXISTS (SELECT 1 FROM {s}.history h WHERE h.seq = e.until)
            AND NOT EXISTS (SELECT 1 FROM unnest(v_seqs) AS o(seq) WHERE o.seq = e.until))
    ), kept AS (
        INSERT INTO {s}.grant_kept (seq, body)
        SELECT h.seq, h.body FROM {s}.history h JOIN (SELECT DISTINCT seq FROM needed) AS n ON n.seq = h.seq
    )
    DELETE FROM {s}.entry e USING unnest(v_seqs) AS g(seq)
    WHERE e.seq = g.seq AND NOT EXISTS (SELECT 1 FROM needed n WHERE n.seq = e.seq AND n.name = e.name);
    WITH gone AS (
        DELETE FROM {s}.history h USING unnest(v_seqs) AS g(seq) WHERE h.seq = g.seq RETURNING h.principal, h.weight
    ), less AS (
        SELECT principal, count(*) AS records, sum(weight) AS bytes FROM gone GROUP BY principal
    )
    UPDATE {s}.share w SET records = w.records - l.records, bytes = w.bytes - l.bytes
    FROM less l WHERE w.principal = l.principal;
    DELETE FROM {s}.share WHERE records <= 0;
    WITH found AS (
        SELECT t.number, min(h.wall_ms) AS wall_ms FROM unnest(p_stretches) AS t(number)
            LEFT JOIN {s}.history h ON h.seq >= t.number << 10 AND h.seq < (t.number + 1) << 10 GROUP BY t.number
    ), dropped AS (
        DELETE FROM {s}.stretch t USING found f WHERE t.number = f.number AND f.wall_ms IS NULL
    )
    UPDATE {s}.stretch t SET wall_ms = f.wall_ms FROM found f WHERE t.number = f.number AND f.wall_ms IS NOT NULL;
    SELECT min(seq) INTO v_first FROM {s}.history;
    DELETE FROM {s}.stretch WHERE number < v_first >> 10;
    DELETE FROM {s}.segment t
    WHERE t.id IN (SELECT DISTINCT g.seq >> 17 FROM unnest(v_seqs || v_let_go) AS g(seq))
        AND NOT EXISTS (SELECT 1 FROM {s}.entry e WHERE e.segment = t.id);
    SELECT greatest(v_pruned, max(g.seq)) INTO v_pruned FROM unnest(v_seqs) AS g(seq);
    UPDATE {s}.archive SET pruned = v_pruned WHERE pruned < v_pruned;
    PERFORM {s}.refuse_unless_ours(p_epoch, p_tenure);
    RETURN v_pruned;
END $$

-- name: stage_values
-- Keep some changed values for a step. No row: the seat is not ours.
WITH ours AS MATERIALIZED (SELECT 1 FROM {s}.seat WHERE epoch = $1 AND tenure = $2 FOR KEY SHARE)
INSERT INTO {s}.staged_values (tenure, step, piece, tbl, kind, keys, vals, sums)
SELECT $2, $3, $4, $5, $6, $7::bytea[], $8::bytea[], $9::bigint[] FROM ours RETURNING piece

-- name: stage_records
-- Keep some records with history value, and their names, for a step. No row: the seat is not ours.
WITH ours AS MATERIALIZED (SELECT 1 FROM {s}.seat WHERE epoch = $1 AND tenure = $2 FOR KEY SHARE)
INSERT INTO {s}.staged_records
    (tenure, step, piece, seqs, walls_ms, principals, weights, bodies, names, name_seqs, marks)
SELECT $2, $3, $4, $5::bigint[], $6::bigint[], $7::bytea[], $8::bigint[], $9::bytea[], $10::bytea[], $11::bigint[],
    $12::smallint[] FROM ours RETURNING piece

-- name: apply_step
-- Let a step count.
SELECT {s}.apply_step($1, $2, $3, $4, $5, $6, $7) AS upto

-- name: resolve_steps
-- Let no step be on its way, and tell how far the archive reaches.
SELECT {s}.settle_steps($1, $2) AS upto

-- name: prune
-- Forget some records.
SELECT {s}.prune($1, $2, $3, $4) AS pruned

-- name: drop_batches
-- Drop a slice of the tail: what the archive stands for, by its own row and not by anybody's memory (N-5).
WITH ours AS MATERIALIZED (SELECT 1 FROM {s}.seat WHERE epoch = $1 AND tenure = $2 FOR KEY SHARE)
DELETE FROM {s}.batch WHERE first_seq IN (
    SELECT b.first_seq FROM ours CROSS JOIN {s}.archive a CROSS JOIN LATERAL (
        SELECT first_seq FROM {s}.batch WHERE first_seq <= a.upto AND last_seq <= a.upto ORDER BY first_seq LIMIT $3
    ) AS b
) RETURNING first_seq

-- name: read_position
-- How far the archive reaches, and the last record. No row: the seat is not ours.
SELECT a.upto, a.pruned, a.state_rows, s.last_seq FROM {s}.seat s CROSS JOIN {s}.archive a
WHERE s.epoch = $1 AND s.tenure = $2

-- name: read_batch_end
-- Where the batch ends that has a record.
SELECT last_seq FROM {s}.batch WHERE first_seq <= $1 ORDER BY first_seq DESC LIMIT 1

-- name: read_batches
-- Some batches after a number and up to another, in their order: so many, and no more once they have so many bytes.
SELECT first_seq, last_seq, body FROM (
    SELECT first_seq, last_seq, body,
        sum(octet_length(body)) OVER (ORDER BY first_seq) - octet_length(body) AS bytes_before
    FROM (
        SELECT first_seq, last_seq, body FROM {s}.batch WHERE first_seq > $1 AND first_seq <= $2
        ORDER BY first_seq LIMIT $3
    ) AS b
) AS t WHERE bytes_before < $4 ORDER BY first_seq

-- name: read_head
-- The one value that every step sets.
SELECT key, value, checksum FROM {s}.value WHERE tbl = 'head'

-- name: read_values
-- Some values, in the order of their tables and places: so many, and no more once they have so many bytes.
SELECT tbl, place, key, value, checksum FROM (
    SELECT tbl, place, key, value, checksum,
        sum(octet_length(value)) OVER (ORDER BY tbl, place) - octet_length(value) AS bytes_before
    FROM (
        SELECT tbl, place, key, value, checksum FROM {s}.value WHERE (tbl, place) > ($1, $2) AND tbl <> 'head'
        ORDER BY tbl, place LIMIT $3
    ) AS v
) AS t WHERE bytes_before < $4 ORDER BY tbl, place

-- name: read_history_after
-- Some of the history after a number and up to another, oldest first.
SELECT seq, body FROM (
    SELECT seq, body, sum(octet_length(body)) OVER (ORDER BY seq) - octet_length(body) AS bytes_before
    FROM (SELECT seq, body FROM {s}.history WHERE seq > $1 AND seq <= $2 ORDER BY seq LIMIT $3) AS h
) AS t WHERE bytes_before < $4 ORDER BY seq

-- name: search_tail
-- Some batches that begin before a number, newest first, while the seat is ours.
SELECT first_seq, body FROM (
    SELECT b.first_seq, b.body,
        sum(octet_length(b.body)) OVER (ORDER BY b.first_seq DESC) - octet_length(b.body) AS bytes_before
    FROM {s}.seat s CROSS JOIN {s}.archive a CROSS JOIN LATERAL (
        SELECT first_seq, body FROM {s}.batch WHERE first_seq > a.upto AND first_seq < $3
        ORDER BY first_seq DESC LIMIT $4
    ) AS b WHERE s.epoch = $1 AND s.tenure = $2
) AS t WHERE bytes_before < $5 ORDER BY first_seq DESC

-- name: search_history
-- Some of the history before a number, newest first, while the seat is ours. What is not of the wanted time has no body.
SELECT seq, CASE WHEN wall_ms BETWEEN $6 AND $7 THEN body END AS body, octet_length(body) AS bytes FROM (
    SELECT h.seq, h.wall_ms, h.body,
        sum(octet_length(h.body)) OVER (ORDER BY h.seq DESC) - octet_length(h.body) AS bytes_before
    FROM {s}.seat s CROSS JOIN {s}.archive a CROSS JOIN LATERAL (
        SELECT seq, wall_ms, body FROM {s}.history WHERE seq <= a.upto AND seq < $3 ORDER BY seq DESC LIMIT $4
    ) AS h WHERE s.epoch = $1 AND s.tenure = $2
) AS t WHERE bytes_before < $5 ORDER BY seq DESC

-- name: search_history_of_name
-- The same for one name.
SELECT seq, CASE WHEN wall_ms BETWEEN $6 AND $7 THEN body END AS body, octet_length(body) AS bytes FROM (
    SELECT h.seq, h.wall_ms, h.body,
        sum(octet_length(h.body)) OVER (ORDER BY h.seq DESC) - octet_length(h.body) AS bytes_before
    FROM (
        SELECT e.seq FROM {s}.seat s CROSS JOIN {s}.archive a CROSS JOIN {s}.segment g CROSS JOIN LATERAL (
            SELECT seq FROM {s}.entry WHERE segment = g.id AND name = $8 AND seq <= a.upto AND seq < $3
            ORDER BY seq DESC LIMIT $4
        ) AS e WHERE s.epoch = $1 AND s.tenure = $2 AND g.id <= $3 >> 17 ORDER BY e.seq DESC LIMIT $4
    ) AS n JOIN {s}.history h ON h.seq = n.seq
) AS t WHERE bytes_before < $5 ORDER BY seq DESC

-- name: follow
-- Some of what comes after a number, oldest first: of the history, and of the tail up to a number, as of one instant.
SELECT first_seq, last_seq, body FROM (
    SELECT first_seq, last_seq, body,
        sum(octet_length(body)) OVER (ORDER BY first_seq) - octet_length(body) AS bytes_before
    FROM (
        SELECT x.first_seq, x.last_seq, x.body FROM {s}.seat s CROSS JOIN {s}.archive a CROSS JOIN LATERAL (
            (SELECT seq AS first_seq, seq AS last_seq, body FROM {s}.history WHERE seq > $3 AND seq <= a.upto
                ORDER BY seq LIMIT $5)
            UNION ALL
            (SELECT first_seq, last_seq, body FROM {s}.batch
                WHERE first_seq > a.upto AND first_seq <= $4 AND last_seq > $3 AND first_seq >= coalesce(
                    (SELECT first_seq FROM {s}.batch WHERE first_seq <= $3 ORDER BY first_seq DESC LIMIT 1), 0)
                ORDER BY first_seq LIMIT $5)
        ) AS x WHERE s.epoch = $1 AND s.tenure = $2 ORDER BY x.first_seq LIMIT $5
    ) AS x
) AS t WHERE bytes_before < $6 ORDER BY first_seq

-- name: last_by
-- The last record of the history whose wall time is not later, while the seat is ours.
SELECT h.seq FROM {s}.seat s CROSS JOIN {s}.archive a CROSS JOIN {s}.stretch t CROSS JOIN LATERAL (
    SELECT seq FROM {s}.history
    WHERE seq >= t.number << 10 AND seq < (t.number + 1) << 10 AND seq <= a.upto AND wall_ms <= $3
    ORDER BY seq DESC LIMIT 1
) AS h WHERE s.epoch = $1 AND s.tenure = $2 AND t.wall_ms <= $3 ORDER BY t.number DESC LIMIT 1

-- name: read_holds
-- Some names from one on, up to another, that were held as of a record, in their order: still, or by a grant that has ended.
SELECT name, seq FROM (
    (SELECT name, seq FROM {s}.living WHERE name >= $1 AND name < $2 AND seq <= $3
        ORDER BY name LIMIT $4)
    UNION ALL
    SELECT e.name, e.seq FROM {s}.segment g CROSS JOIN LATERAL (
        SELECT name, seq FROM {s}.entry WHERE segment = g.id AND name >= $1 AND name < $2 AND seq <= $3
            AND until > $3 AND until < 4611686018427387904
        ORDER BY name LIMIT $4
    ) AS e WHERE g.id <= $3 >> 17 AND g.until > $3
) AS x ORDER BY name, seq LIMIT $4

-- name: read_grants
-- Some grants by number, in the history or kept beside it: no more once they have so many bytes.
SELECT seq, body FROM (
    SELECT seq, body, sum(octet_length(body)) OVER (ORDER BY seq) - octet_length(body) AS bytes_before FROM (
        SELECT seq, body FROM {s}.history WHERE seq = ANY ($1::bigint[])
        UNION ALL SELECT seq, body FROM {s}.grant_kept WHERE seq = ANY ($1::bigint[])
    ) AS g
) AS t WHERE bytes_before < $2 ORDER BY seq

-- name: read_shares
-- Who has left how much of the history.
SELECT principal, records, bytes FROM {s}.share

-- name: read_oldest_of
-- Some of what somebody has left after a number, eldest first.
SELECT seq, weight FROM {s}.history WHERE principal = $1 AND seq > $2 ORDER BY seq LIMIT $3

-- name: read_newest_wall
-- The wall time of the newest record of the history.
SELECT wall_ms FROM {s}.history ORDER BY seq DESC LIMIT 1

-- name: read_overdue_blocks
-- Some stretches that have something too old.
SELECT number FROM {s}.stretch WHERE wall_ms < $1 ORDER BY number LIMIT $2

-- name: read_overdue
-- What is too old in some stretches.
SELECT h.seq FROM unnest($2::bigint[]) AS t(number) CROSS JOIN LATERAL (
    SELECT seq FROM {s}.history WHERE seq >= t.number << 10 AND seq < (t.number + 1) << 10 AND wall_ms < $1
) AS h
