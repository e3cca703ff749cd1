"""`python -m benchmarks`: the door, and nothing else."""

from benchmarks.run import main

if __name__ == "__main__":
    raise SystemExit(main())
