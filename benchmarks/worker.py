"""One process of the built-in load generator: a plan comes in as an argument, a tally goes out as JSON.

A program of its own and no fork of ours, so that it shares nothing with the benchmark but this text.
"""

import json
import sys

from benchmarks.httpload import Plan, run_plan

if __name__ == "__main__":
    json.dump(run_plan(Plan.from_json(sys.argv[1])).as_dict(), sys.stdout)
