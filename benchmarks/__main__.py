"""`python -m benchmarks`: the door, and nothing else. With `dearest` as its first word it is another benchmark's."""

import sys

from benchmarks import dearest, run

if __name__ == "__main__":
    is_dearest = sys.argv[1:2] == ["dearest"]
    raise SystemExit(dearest.main(sys.argv[2:]) if is_dearest else run.main())
