"""Records for the tests of journals: small, all different, and told apart by their number."""

import struct
import zlib

from holdfast.core.events import Ended, Granted, Record, Renewed
from holdfast.core.values import Lease
from holdfast.journal.codec import FORMAT
from tests.contract.tools import sample_events

WALL_MS = 1_700_000_000_000


def grant(seq: int, *, size: int = 0, names: int = 50) -> Record:
    """One record. `size` makes it longer; every third is a renewal and every fourth an end, for all paths."""
    name = f"job/{seq % names}"
    if seq % 3 == 0:
        return Record(seq, seq, WALL_MS + seq, Renewed(name, f"lease-{seq}", 1000, seq + 1000, "x" * size))
    if seq % 4 == 0:
        return Record(seq, seq, WALL_MS + seq, Ended(name, f"lease-{seq}", seq, "released", True, reason="x" * size))
    lease = Lease(
        f"lease-{seq}",
        seq,
        "ci",
        "x" * size,
        None,
        False,
        1000,
        seq + 1000,
        0,
        None,
        None,
        WALL_MS + seq,
        WALL_MS + seq,
    )
    return Record(seq, seq, WALL_MS + seq, Granted(name, lease))


def grants(first: int, last: int, *, size: int = 0) -> list[Record]:
    """Records of these numbers, both included."""
    return [grant(seq, size=size) for seq in range(first, last + 1)]


def sample_records() -> list[Record]:
    """One record of every kind, at least."""
    return [Record(seq, seq * 10, WALL_MS + seq, event) for seq, event in enumerate(sample_events(), 1)]


def framed(body: bytes, version: int = FORMAT) -> bytes:
    """Put a sound frame around any bytes, as a journal has it around a record."""
    return struct.pack("<BII", version, len(body), zlib.crc32(body, version)) + body
