"""A scheduled job that several processes have, on several machines, and that one of them does.

    python -m examples.schedulers.story apscheduler

`max_instances` and `coalesce` of APScheduler count within one process, and one job store must not be shared by several
schedulers. So let every machine have its own scheduler with the same jobs, and the function itself say who works.
"""

import os
import sys
from datetime import UTC
from pathlib import Path

from apscheduler.events import EVENT_JOB_ERROR, EVENT_JOB_EXECUTED, JobExecutionEvent
from apscheduler.schedulers.blocking import BlockingScheduler

import holdfast

DAY_SECONDS = 24 * 3600

scheduler = BlockingScheduler(timezone=UTC)  # The date in the job's name is that of UTC, too.


@scheduler.scheduled_job("cron", id="nightly", hour=3, minute=15, misfire_grace_time=3600)
@holdfast.exclusive("nightly-report-{date}", ttl=60, remember=2 * DAY_SECONDS, skip=True)
def nightly_report() -> Path:
    """Make the report. Only one machine at a time is in here, and none once it is made."""
    path = Path(os.environ.get("REPORTS", ".")) / "reports.txt"
    with path.open("a", encoding="utf-8") as file:
        file.write(f"made by process {os.getpid()}\n")
    return path


def tell(event: JobExecutionEvent) -> None:
    """Say what came of a run: APScheduler itself only logs an error."""
    came = event.exception or event.retval or "skipped: it is made, or another machine makes it"
    print(f"process {os.getpid()}: {came}", flush=True)


if __name__ == "__main__":
    scheduler.add_listener(tell, EVENT_JOB_EXECUTED | EVENT_JOB_ERROR)
    if "--now" in sys.argv:  # To try it out.
        scheduler.add_job(nightly_report)
    scheduler.start()
