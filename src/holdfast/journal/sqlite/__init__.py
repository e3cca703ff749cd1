"""The journal on SQLite. The archive has the records before the journal's tail, in a file of its own with one writer.

    journal.sqlite3   the tail: every record since the last step, as it was appended. Only the server has it open.
    archive.sqlite3   the state as of the last step, value by value; the history; who held what, and when.

A *step* advances the archive to a record: one synced transaction writes the batches since the last step and the changed
values. The batches stay in the journal until it is durable, so the writer may be killed at any moment:

    server (`compactor`)                                          `compactor_process`, niced
    batches and changed values ──────── socket pair ────────────► `Writer`: one transaction
    drop the batches from the tail ◄─── position ───────────────  commit
    `Reader`, on connections of its own, read-only
"""
