"""Consumers that share a backlog: each task is finished once, also when a consumer is killed in the middle of one.

The backlog is a file with one JSON object a line, such as {"id": "invoice-1", "text": "Hello"}. Start as many consumers
as you like, on as many machines as see the file:

    python examples/queue_consumer.py tasks.jsonl --results results

A consumer takes the first task that nobody has and nobody has finished, and leaves when all are finished. The task of
one that was killed is free again after `--ttl` seconds and is started anew: so the result of a task is a file that is
put in place whole, and doing it again changes nothing. One question to the server may name up to 1 000 tasks.

The server is found by HOLDFAST_URL and HOLDFAST_TOKEN or HOLDFAST_TOKEN_FILE; without them, what `make run` set up is.
"""

import argparse
import json
import os
import time
from pathlib import Path

import holdfast

WEEK_SECONDS = 7 * 24 * 3600


def consume(tasks: dict[str, dict[str, str]], arguments: argparse.Namespace) -> None:
    while True:
        try:
            with holdfast.claim_any(list(tasks), ttl=arguments.ttl, wait=arguments.wait) as claim:
                say(f"working on {claim.job_id}, attempt {claim.attempts}")
                result = work(tasks[claim.job_id], arguments)
                claim.done(result, remember=WEEK_SECONDS)
            say(f"finished {claim.job_id}: {result}")
        except holdfast.JobDone:
            say("all tasks are finished")
            return
        except holdfast.JobHeld as held:
            for other in held.others:
                say(f"{other.job_id} is with {other.owner}")
            say("leaving the rest to them")
            return
        except holdfast.LeaseLost as lost:
            say(f"{lost}; whoever has it now finishes it")


def work(task: dict[str, str], arguments: argparse.Namespace) -> str:
    """Do one task, and say what came of it in a few words; those go to whoever asks for the task again."""
    time.sleep(arguments.seconds)
    new = arguments.results / f".{task['id']}.{os.getpid()}"
    new.write_text(task["text"].upper())
    new.replace(arguments.results / task["id"])
    return f"{len(task['text'])} characters"


def say(text: str) -> None:
    print(f"[{os.getpid()}] {text}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="Take tasks from a backlog until all are finished.")
    parser.add_argument("tasks", type=Path, help="a file with one JSON object a line, each with an id and a text")
    parser.add_argument("--results", type=Path, default=Path("results"), help="the folder for what comes out")
    parser.add_argument("--seconds", type=float, default=1, help="how long a task takes")
    parser.add_argument("--ttl", type=float, default=30, help="how long a task stays ours after we died")
    parser.add_argument("--wait", type=float, default=60, help="how long to wait for the tasks that others have")
    arguments = parser.parse_args()
    arguments.results.mkdir(exist_ok=True)
    tasks = [json.loads(line) for line in arguments.tasks.read_text().splitlines()]
    consume({f"tasks/{task['id']}": task for task in tasks}, arguments)


if __name__ == "__main__":
    main()
