"""Deploys of one target, one after another: each waits for its turn, first come, first served.

    python examples/serialised_deploys.py deploy-main --wait 600 -- ./deploy.sh v42

In a shell the same is one line:

    holdfast run deploy-main -w 10m -- ./deploy.sh v42

The deploy finds its fencing token in HOLDFAST_FENCING_TOKEN and hands it to whatever it changes, which can then refuse
a deploy from the past. If the lease is lost on the way (somebody revoked it, the server was away for too long), the
deploy is told to end with SIGTERM.

Ends with the deploy's own exit code; 11 if its turn did not come in time, 20 if the lease was lost. The server is found
by HOLDFAST_URL and HOLDFAST_TOKEN or HOLDFAST_TOKEN_FILE; without them, what `make run` set up is.
"""

import argparse
import os
import subprocess
import sys

import holdfast


def deploy(claim: holdfast.Claim, command: list[str]) -> int:
    """Run the command for as long as the claim is ours."""
    token = {"HOLDFAST_FENCING_TOKEN": str(claim.fencing_token)}
    with subprocess.Popen(command, env={**os.environ, **token}) as process:
        while process.poll() is None:
            if claim.lost.wait(0.1):
                process.terminate()
                process.wait()
                claim.raise_if_lost()
        return process.returncode


def report_position(update: holdfast.QueuePosition) -> None:
    owner = update.owner.owner if update.owner else "nobody yet"
    say(f"waiting at place {update.position} for {update.waited:.0f} s; {update.job_id} is with {owner}")


def say(text: str) -> None:
    print(f"[{os.getpid()}] {text}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description="Run a deploy when it is its turn.")
    parser.add_argument("target", help="what must not be deployed twice at once: deploy-main")
    parser.add_argument("--wait", type=float, default=600, help="how long to stand in line, in seconds")
    parser.add_argument("--ttl", type=float, default=60, help="how long the target stays ours after we died")
    parser.add_argument("command", nargs="+", help="after --: the deploy and its arguments")
    arguments = parser.parse_args()
    try:
        with holdfast.claim(arguments.target, ttl=arguments.ttl, wait=arguments.wait, on_wait=report_position) as claim:
            say(f"deploying with fencing token {claim.fencing_token}")
            code = deploy(claim, arguments.command)
            claim.release(outcome=None if code == 0 else "failed")
    except holdfast.NotInTime as late:
        say(f"gave up: {late}")
        return 11
    except holdfast.LeaseLost as lost:
        say(f"stopped the deploy: {lost}")
        return 20
    say(f"the deploy ended with {code}")
    return code


if __name__ == "__main__":
    sys.exit(main())
