"""The same cron entry on several machines: the report is made once a day, by whichever machine comes first.

    15 3 * * *  HOLDFAST_URL=https://holdfast.example python examples/singleton_cron.py --out /srv/reports

The date in the job's name is that of UTC: choose an hour at which all machines agree on the day. If the report fails,
the job is free again and the next machine, or the next try, makes it. Once made, it stays made for `remember` seconds.

Try it twice in a row: the second run skips. The server is found by HOLDFAST_URL and HOLDFAST_TOKEN or
HOLDFAST_TOKEN_FILE; without them, what `make run` set up is.
"""

import argparse
import platform
from datetime import UTC, datetime
from pathlib import Path

import holdfast

DAY_SECONDS = 24 * 3600


@holdfast.exclusive("nightly-report-{date}", ttl=60, remember=2 * DAY_SECONDS, skip=True)
def make_report(folder: Path) -> Path:
    """Make the report. Only one machine at a time is in here, and none once it is made."""
    path = folder / f"report-{datetime.now(UTC).date()}.txt"
    with path.open("a") as file:
        file.write(f"made by {platform.node()}\n")
    return path


def main() -> None:
    parser = argparse.ArgumentParser(description="Make the nightly report, unless another machine does or did.")
    parser.add_argument("--out", type=Path, default=Path(), help="the folder for the report")
    made = make_report(parser.parse_args().out)
    print(f"made {made}" if made else "skipped: another machine makes it, or has made it")


if __name__ == "__main__":
    main()
