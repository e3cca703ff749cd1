"""The task with a broker that needs no server: a folder. It is for the story alone.

As a program it delivers tasks: `python -m examples.schedulers.celery.trial 1842 1842`.
"""

import os
import sys
import warnings

from celery.platforms import SecurityWarning

from examples.schedulers.celery.tasks import app, send_invoice

# It warns of root, and that is who everybody is where the network is cut off.
warnings.filterwarnings("ignore", category=SecurityWarning)
send_invoice.default_retry_delay = 1
app.conf.worker_log_format = app.conf.worker_task_log_format = "%(message)s"
app.conf.broker_transport_options = {
    "data_folder_in": os.environ["CELERY_QUEUE"],
    "data_folder_out": os.environ["CELERY_QUEUE"],
    "control_folder": os.environ["CELERY_QUEUE"] + "-control",
}

if __name__ == "__main__":
    for invoice in sys.argv[1:]:
        send_invoice.delay(invoice)
