"""The archive: the records that are gone from the journal's tail. A file of its own, with one writer.

    journal.sqlite3   the tail: every record since the last step, as it was appended. Only the server has it open.
    archive.sqlite3   the state as of the last step, value by value; the history; who held what, and when.

A *step* brings the archive up to a record: it takes the batches since the last one and the values that changed, in one
transaction, synced by its commit. Nothing that was acknowledged depends on it: the batches stay in the journal until
the step is durable. So the writer can be a process of its own, and be killed at any moment:

    server (`archivist`)                                          child (`child`), niced
    batches and changed values ──────── socket pair ────────────► `Writer`: one transaction
    drop the batches from the tail ◄─── position ───────────────  commit
    `Reader`, on connections of its own, read-only
"""
