"""What the caller asked for: one set of options for all parts, since most of them share most."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.systems.base import SCRATCH

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

CONNECTIONS = (1, 16, 64, 256, 1_000)
PEER_CONNECTIONS = (1, 64, 256)
RESULTS = SCRATCH / "results"


@dataclass(frozen=True)
class Options:
    """What the caller asked for."""

    parts: tuple[str, ...]
    seconds: int
    rounds: int
    minutes: float
    connections: tuple[int, ...] | None
    leases: int
    waiters: int
    pairs: int
    systems: frozenset[str]
    results: Path
    builtin_load: bool
    must_meet_goals: bool


def parse_options(parts: Sequence[str], systems: Sequence[str], argv: Sequence[str] | None = None) -> Options:
    """Read the command line; --quick only changes defaults, so that it can be combined."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Our server and the peers found here, in one run. Without a part it runs them all.",
        epilog="Others: `report`, `check`, `get`, `costliest`, `followers`, `path`, `pythons`; they have --help.",
    )
    add = parser.add_argument
    add("parts", nargs="*", metavar="PART", help=f"some of: {', '.join(parts)}")
    add("--quick", action="store_true", help="small counts and one short round: a look, not a result")
    add("--seconds", type=between(1, 60), help="of each measurement, default 3")
    add("--rounds", type=between(1, 20), help="how often each is measured; the median counts, default 5")
    add("--minutes", type=minutes, help="of steady load, default 10")
    add("--connections", type=numbers, help="such as 1,64,256; default 1,16,64,256,1000, and 1,64,256 for peers")
    add("--leases", type=between(1_000, 5_000_000), help="live leases of the large server, default 1000000")
    add("--waiters", type=between(1, 100_000), help="how many stand in line, default 10000")
    add("--pairs", type=between(1, 100_000), help="claims and releases a client makes in a turn, default 500")
    add("--systems", type=words(systems), default=frozenset(systems), help=f"some of {','.join(systems)}")
    add("--results", type=Path, default=RESULTS, metavar="DIR", help="where results are kept, one file for each part")
    add("--builtin-load", action="store_true", help="our own generator even where wrk is there")
    add("--assert", action="store_true", dest="must", help="exit 1 unless every goal is met")
    args = parser.parse_args(argv)
    unknown = [part for part in args.parts if part not in parts]
    if unknown:
        parser.error(f"there is no part {unknown[0]!r}; there are: {', '.join(parts)}")
    quick = args.quick
    return Options(
        parts=tuple(part for part in parts if part in args.parts) or tuple(parts),
        seconds=args.seconds or (1 if quick else 3),
        rounds=args.rounds or (1 if quick else 5),
        minutes=args.minutes or (0.25 if quick else 10),
        connections=args.connections,
        leases=args.leases or (20_000 if quick else 1_000_000),
        waiters=args.waiters or (500 if quick else 10_000),
        pairs=args.pairs or (100 if quick else 500),
        systems=args.systems,
        results=args.results,
        builtin_load=args.builtin_load,
        must_meet_goals=args.must,
    )


def between(least: int, most: int) -> Callable[[str], int]:
    """A whole number, refused with both ends named."""

    def integer(text: str) -> int:
        value = int(text)
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"must be {least} to {most}")
        return value

    return integer


def minutes(text: str) -> float:
    """Minutes, of which a part is allowed too."""
    value = float(text)
    if not 0.1 <= value <= 1_440:
        raise argparse.ArgumentTypeError("must be 0.1 to 1440")
    return value


def numbers(text: str) -> tuple[int, ...]:
    """Counts of connections, with commas between."""
    read = between(1, 1_000)
    return tuple(sorted({read(part) for part in text.split(",")}))


def words(known: Sequence[str]) -> Callable[[str], frozenset[str]]:
    """A choice of known words, separated by commas."""

    def chosen_words(text: str) -> frozenset[str]:
        chosen = frozenset(part.strip() for part in text.split(","))
        if unknown := chosen.difference(known):
            raise argparse.ArgumentTypeError(f"unknown: {', '.join(sorted(unknown))}")
        return chosen

    return chosen_words
