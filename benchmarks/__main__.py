"""`python -m benchmarks`: the door, and nothing else. Its first word may name a program of its own."""

import sys

from benchmarks import check, costliest, followers, get, path, pythons, run
from benchmarks.report import page

OTHERS = {
    "check": check.main,
    "costliest": costliest.main,
    "followers": followers.main,
    "get": get.main,
    "path": path.main,
    "pythons": pythons.main,
    "report": page.main,
}

if __name__ == "__main__":
    other = OTHERS.get(sys.argv[1]) if len(sys.argv) > 1 else None
    raise SystemExit(run.main() if other is None else other(sys.argv[2:]))
