"""Writes one more golden journal: `python -m tests.journal.golden.make`. Those that are there are never changed.

`records-N.jsonl` has a line per record: its frame in hexadecimal digits, and what it says. `journal-N.txt` is a whole
SQLite journal with the same records, compressed and in base 64. Up to number 6 the first of them are its history, and
stand behind a snapshot of two parts that no state is in: whoever opens one gives it that of an empty state.
"""

import asyncio
import base64
import json
import tempfile
import textwrap
import zlib
from pathlib import Path

from holdfast.core.events import Record
from holdfast.journal.codec import encode_batch
from holdfast.journal.inspect import as_json
from holdfast.journal.sqlite import FILE, SqliteJournal
from tests.contract.suite import WALL_MS, sample_events

GOLDEN = Path(__file__).parent
COMPACTED = range(1, 7)
"""The journals that have a snapshot."""
SNAPSHOT_UPTO = 6


def sample_records() -> list[Record]:
    return [Record(seq, seq * 10, WALL_MS + seq, event) for seq, event in enumerate(sample_events(), 1)]


def record_lines(records: list[Record]) -> str:
    lines = [{"frame": encode_batch([record]).hex(), "record": as_json(record)} for record in records]
    return "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)


async def journal_file(records: list[Record], directory: Path) -> bytes:
    journal = SqliteJournal(directory, ballast_bytes=0)
    await journal.open()
    for batch in (records[:2], records[2:SNAPSHOT_UPTO], records[SNAPSHOT_UPTO:8], records[8:]):
        await journal.append(batch)
    await journal.close()
    return (directory / FILE).read_bytes()


def main() -> None:
    number = 1 + len(list(GOLDEN.glob("records-*.jsonl")))
    records = sample_records()
    with tempfile.TemporaryDirectory() as directory:
        file = asyncio.run(journal_file(records, Path(directory)))
    text = "\n".join(textwrap.wrap(base64.b64encode(zlib.compress(file, 9)).decode(), 120)) + "\n"
    (GOLDEN / f"records-{number}.jsonl").write_text(record_lines(records), encoding="utf-8")
    (GOLDEN / f"journal-{number}.txt").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
