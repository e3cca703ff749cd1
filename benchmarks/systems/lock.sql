-- A lock in PostgreSQL as people write it by hand: one row for each name, taken if it is free or has run out.

-- table: what keeps the locks
create table lock (name text primary key, token text not null, until timestamptz not null);

-- acquire: take a name that nobody has
insert into lock values (%(name)s, %(token)s, now() + interval '1 hour')
on conflict (name) do update set token = excluded.token, until = excluded.until where lock.until < now()
returning token;

-- release: give it back
delete from lock where name = %(name)s and token = %(token)s returning name;

-- pgbench: take a name of two thousand million
\set number random(1, 2000000000)
insert into lock values (:prefix || :number, 'token', now() + interval '1 hour')
on conflict (name) do update set token = excluded.token, until = excluded.until where lock.until < now();

-- held: how many are taken
select count(*) from lock;
