"""A task of Celery that has one owner at a time and is done once, however often it is delivered.

    python -m examples.schedulers.story celery

A broker may deliver a task again: after a lost connection, after a worker that died, and with Redis or SQS whenever a
task runs for longer than the visibility timeout, while the first worker is still at work.
"""

import os
import sqlite3

from celery import Celery, Task

import holdfast
from holdfast.fencing import SqlFence

app = Celery("tasks", broker=os.environ["CELERY_BROKER"])
app.conf.task_acks_late = True  # A task whose worker died is delivered again.
app.conf.task_reject_on_worker_lost = True

fence = SqlFence()
WEEK_SECONDS = 7 * 24 * 3600


@app.task(bind=True, max_retries=None, default_retry_delay=30)
def send_invoice(task: Task, invoice: str) -> str:
    try:
        with holdfast.claim(f"invoices/{invoice}", ttl=60) as claim:
            write(invoice, claim.fencing_token)
            claim.done("sent", remember=WEEK_SECONDS)
    except holdfast.JobDone:
        return f"{invoice} was sent before"
    except holdfast.JobHeld as held:
        raise task.retry(exc=held) from None  # Do not wait here: a worker that waits does nothing else.
    return f"{invoice} is sent"


def write(invoice: str, token: int) -> None:
    """Write in one transaction with the fence: a worker that slept past the end of its lease writes nothing.

    A worker may die after this and before `done`. Then the task is done again, so writing twice must do no harm.
    """
    database = sqlite3.connect(os.environ["INVOICES"])
    try:
        with database, fence.guard(database, f"invoices/{invoice}", token):
            database.execute("INSERT INTO sent VALUES (?, ?) ON CONFLICT DO NOTHING", (invoice, token))
    finally:
        database.close()
