"""Lets what you write to refuse an owner from the past. The check and the write it guards are one step, or not offered.

Every lease has a token greater than that of every lease before it. A fence remembers the greatest token it has seen for
a resource and refuses smaller ones with `StaleToken`:

    SqlFence        a row in your own database, in your own transaction
    FileFence       a file beside the file, locked while you write; `fenced_write` is its short form
    MemoryFence     the memory of one process, for a handler of requests
    FolderFence     the same for all processes of one machine

`fenced` puts a function behind a fence, `FencedASGI` and `FencedWSGI` a web application; those have to be told who
vouches for the token of a request. Nothing here talks to a Holdfast server but a function of yours, and nothing but the
standard library is needed.
"""

from holdfast.errors import CannotFence, StaleToken
from holdfast.fencing._file import FileFence, FolderFence, HeldFile, fenced_write
from holdfast.fencing._memory import MemoryFence
from holdfast.fencing._sql import SqlFence
from holdfast.fencing._token import TOKEN_MAX, parse_token
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
