"""A journal that several nodes share: in a schema of a PostgreSQL that others run. It needs the extra `postgres`.

| module | holds |
|---|---|
| `journal` | the journal: keeps the seam, and puts the parts together |
| `seat` | taking the seat, every write under it, and what becomes of a write whose answer was lost |
| `lines` | the two connections, and what is known of the server at the other end |
| `driver` | asyncpg: the only module that knows it. Connecting, one statement at a time, never a cancelled one |
| `demands` | what a server must promise us, asked back after connecting |
| `schema` | making the tables, and refusing those that we cannot read |
| `knowledge` | what this process knows of the store, over all its tenures: by it a store that went back is found out |
| `sealing` | the authority's key under a secret of the operator's |
| `archive…`, `looking…`, `whole…` | what is no longer in the tail |
"""
