"""Lets what you write to refuse a former owner. The check and the write it guards are one step, or not offered.

The token of a lease is greater than that of every lease before it. A fence remembers the greatest token it has seen for
a resource and refuses smaller ones with `StaleToken`:

    SqlFence        a row in your own database, in your own transaction
    FileFence       a file next to the file, locked while you write; `fenced_write` is its short form
    MemoryFence     the memory of one process, for request handlers
    FolderFence     the same for all processes of one machine

`fenced` guards a function, `FencedASGI` and `FencedWSGI` a web application; those need to know what vouches for a
request's token. Only the standard library is needed, and only a function of yours talks to a Holdfast server.
"""

from holdfast.errors import CannotFence, StaleToken
from holdfast.fencing._file import FileFence, FolderFence, HeldFile, fenced_write
from holdfast.fencing._memory import TOKEN_MAX, MemoryFence, parse_token
from holdfast.fencing._sql import SqlFence
from holdfast.fencing._web import TOKEN_HEADER, Fence, FencedASGI, FencedWSGI, fenced, routed_path, sign_token

__all__ = [
    "CannotFence",
    "Fence",
    "FencedASGI",
    "FencedWSGI",
    "FileFence",
    "FolderFence",
    "HeldFile",
    "MemoryFence",
    "SqlFence",
    "StaleToken",
    "TOKEN_HEADER",
    "TOKEN_MAX",
    "fenced",
    "fenced_write",
    "parse_token",
    "routed_path",
    "sign_token",
]
