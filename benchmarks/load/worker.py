"""One run of the generator as a program: a plan comes in as an argument, the result goes out as JSON.

A program of its own and no fork of ours, so that it shares nothing with the benchmark but this text.
"""

import sys

from benchmarks.load.generator import Plan, run

if __name__ == "__main__":
    sys.stdout.write(run(Plan.from_json(sys.argv[1])).as_json())
