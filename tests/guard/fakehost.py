"""A host of agents, as a program of its own: for each line of JSON it runs a command as hosts run their hooks.

That is through `sh -c`, with the input on a pipe, and it waits until both outputs are closed, as hosts do.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading

_output = threading.Lock()


def _run(order: dict[str, str]) -> None:
    done = subprocess.run(
        ["sh", "-c", order["command"]],
        input=order["input"].encode("utf-8", "surrogateescape"),
        cwd=order["cwd"],
        capture_output=True,
        check=False,
    )
    answer = {"id": order["id"], "code": done.returncode, "out": done.stdout.decode(), "err": done.stderr.decode()}
    with _output:
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    for line in sys.stdin:
        threading.Thread(target=_run, args=(json.loads(line),)).start()
