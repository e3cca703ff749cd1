"""The frames of a record in `/events`: bounded in bytes, and put into bytes once for all who may see the same.

A record is one frame, unless its changes need more than `FRAME_BYTES`. Then it is several: each says which `part` it is
and how many `parts` there are, and only the last has the `id`. So one who is cut off between two parts still has the
number of the record before, resumes there, and gets all parts again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.core.values import has_labels
from holdfast.server.render import encode
from holdfast.server.streams.happenings import changes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.core.events import Record

    Labels = frozenset[tuple[str, str]]

FRAME_BYTES = 65_536
"""How large the changes in one frame are, at most, unless one of them is larger."""
KEPT_BYTES_MAX = 4 * 1024 * 1024
ENTRY_BYTES = 200
"""What an entry costs beside its frames, about. Most have none: the reader may not see any of it."""


class Frames:
    """The newest frames that were made, for the readers who come to the same record later. The oldest go first."""

    def __init__(self) -> None:
        self._kept: dict[tuple[int, str, Labels], tuple[bytes, ...]] = {}
        self._kept_bytes = 0

    def of(self, record: Record, prefix: str, labels: Labels) -> tuple[bytes, ...]:
        """Return the frames of a record for readers of a prefix and labels; none if they may see none of it."""
        place = record.seq, prefix, labels
        frames = self._kept.get(place)
        if frames is None:
            frames = tuple(_frames(record, prefix, labels))
            self._keep(place, frames)
        return frames

    def clear(self) -> None:
        """Forget all: nobody reads."""
        self._kept.clear()
        self._kept_bytes = 0

    def _keep(self, place: tuple[int, str, Labels], frames: tuple[bytes, ...]) -> None:
        self._kept[place] = frames
        self._kept_bytes += _size(frames)
        while self._kept_bytes > KEPT_BYTES_MAX:
            self._kept_bytes -= _size(self._kept.pop(next(iter(self._kept))))


def _size(frames: tuple[bytes, ...]) -> int:
    return ENTRY_BYTES + sum(map(len, frames))


def _frames(record: Record, prefix: str, labels: Labels) -> Iterator[bytes]:
    seq = record.seq
    parts = list(_parts(record, prefix, labels))
    for number, part in enumerate(parts, 1):
        begin = b"id: %d\n" % seq if number == len(parts) else b""
        which = b"" if len(parts) == 1 else b'"part":%d,"parts":%d,' % (number, len(parts))
        yield b'%bevent: change\ndata: {"seq":%d,%b"changes":[%b]}\n\n' % (begin, seq, which, part)


def _parts(record: Record, prefix: str, labels: Labels) -> Iterator[bytes]:
    """Yield the changes that may be seen, as JSON, as many together as one frame has room for."""
    part: list[bytes] = []
    size = 0
    for change in changes(record, lambda name: name.startswith(prefix)):
        if labels and not has_labels(change.labels or None, labels):
            continue
        said = encode(change)
        if part and size + len(said) > FRAME_BYTES:
            yield b",".join(part)
            part, size = [], 0
        part.append(said)
        size += len(said) + 1
    if part:
        yield b",".join(part)
