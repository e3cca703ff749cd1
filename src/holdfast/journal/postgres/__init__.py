"""A journal that several nodes share: in a schema of a PostgreSQL that others run. It needs the extra `postgres`.

| module | holds |
|---|---|
| `journal` | the journal: implements `journal/interface.py` with the other parts |
| `connection` | asyncpg, which only this module knows; which server it is, and what it must guarantee |
| `leadership` | the tables; reading the leadership, and taking it; a store that went back in time; the sealed key |
| `writer` | every write as the leader, and how a lost answer is resolved |
| `archive` | the archive: its steps, pruning, reading all of it |
| `history` | reads of the past over tail and archive; a snapshot of both |
| `admin` | what operators do with a store; filling an empty one |
"""
