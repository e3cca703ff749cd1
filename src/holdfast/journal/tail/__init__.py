"""The journal's own file: the tail, which has every record since the last step of the archive, as it was appended.

`opening` locks it, looks at all that will be replayed and only then changes anything; `batches` reads it and drops what
is archived; `looking` looks back, in the tail and in the archive together.
"""
