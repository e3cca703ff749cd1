"""What the generator asks, and how it judges the answers."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.load import scripts
from benchmarks.load.generator import Plan, run, script_of
from holdfast.testing import server

ROOT = Path(__file__).resolve().parents[2]
SERVER_MODULES_MAX, CLIENT_MODULES_MAX = 30, 12  # of one acquire with a key, and of one renewal
LEASE = "0f8fad5b-d9cb-469f-a165-70867728950e"
GRANTED = json.dumps({"status": "acquired", "lease_id": LEASE}, separators=(",", ":")).encode()


def wire(*, as_client: bool = False) -> scripts.Wire:
    return scripts.Wire(80, "Bearer x", as_client=as_client)


def line_of(message: bytes | None) -> str:
    return (message or b"").split(b" HTTP/1.1")[0].decode()


def key_of(message: bytes | None) -> bytes:
    return (message or b"").partition(b"Idempotency-Key: ")[2].partition(b"\r\n")[0]


def test_loop_script_claims_renews_and_releases() -> None:
    """Acquire, two renewals and release of one name, each connection by itself; then the next name."""
    loop = scripts.Loop(wire(), "job", 3)
    asked = []
    for _ in range(5):
        for connection in (0, 1):
            asked.append((connection, line_of(loop.next(connection))))
            loop.judge(connection, 200, GRANTED)
    assert [line for connection, line in asked if connection == 0] == [
        "POST /locks/job-000000/acquire",
        "POST /locks/job-000000/renew",
        "POST /locks/job-000000/renew",
        "POST /locks/job-000000/release",
        "POST /locks/job-000002/acquire",
    ]
    assert loop.wrong == 0


def test_a_loop_that_was_refused_goes_on_with_another_name() -> None:
    """A refusal is counted, its first text is kept, and nobody renews what was never granted."""
    loop = scripts.Loop(wire(), "job", 3)
    loop.next(0)
    loop.judge(0, 200, b'{"status":"held"}')
    assert (loop.wrong, loop.sample) == (1, '200 {"status":"held"}')
    assert line_of(loop.next(0)) == "POST /locks/job-000001/acquire"


def test_a_key_is_never_sent_twice() -> None:
    """Requests as our client sends them have a key of their own, over all runs; renewals have none."""
    first, second = wire(as_client=True), wire(as_client=True)
    keys = [key_of(each.post(b"/x", b"{}")) for each in (first, second) for _ in range(3)]
    assert len(set(keys)) == 6 and all(len(key) == 32 for key in keys)
    assert key_of(first.post(b"/x", b"{}", is_keyed=False)) == key_of(wire().post(b"/x", b"{}")) == b""


def test_a_call_of_all_is_right_only_if_the_last_name_has_a_lease() -> None:
    """A grant of fewer than all names is a wrong answer."""
    script = scripts.All(wire(), "job")
    script.judge(0, 200, b'{"status":"acquired","claims":[{"name":"job-0000000-99","lease_id":"..."}]}')
    assert script.wrong == 0
    script.judge(0, 200, b'{"status":"acquired","claims":[{"name":"job-0000000-98","lease_id":"..."}]}')
    assert script.wrong == 1


def test_every_script_gets_right_answers_from_a_real_server(tmp_path: Path) -> None:
    """Each script of the benchmark runs against our server without a wrong answer, and counts what it asked."""
    with server() as running:
        port = int(running.url.rpartition(":")[2])
        authorization = f"Bearer {running.token}"
        leases_file = str(tmp_path / "kept")

        def run_script(script: str, requests: int = 60, **arguments: object) -> int:
            plan = Plan(port, script, 4, 30.0, authorization, dict(arguments), as_client=True, count=requests)
            seen = run(Plan.from_json(plan.as_json()))
            assert (seen.wrong, seen.errors, seen.answers) == (0, 0, requests), (script, seen.sample)
            return seen.answers

        run_script("acquire", prefix="new", keep=leases_file)
        assert len(scripts.read_pairs(leases_file)) == 60
        run_script("renew", held=leases_file)
        run_script("status", held=leases_file)
        run_script("any", prefix="first", held=leases_file)
        run_script("release", held=leases_file)
        run_script("all", prefix="many", requests=8)
        run_script("loop", prefix="loop", names=16)


def test_a_paced_run_keeps_its_rate() -> None:
    """A run with a rate sends as many as are due, however soon they are answered."""
    with server() as running:
        port = int(running.url.rpartition(":")[2])
        arguments = {"prefix": "paced"}
        plan = Plan(port, "acquire", 4, 0.5, f"Bearer {running.token}", arguments, rate=100.0)
        seen = run(plan)
    assert seen.wrong == 0 and seen.answers <= 51


def test_a_plan_names_a_script_that_exists() -> None:
    """A script that does not exist is refused before anything is sent."""
    with pytest.raises(ValueError, match="nothing"):
        script_of(Plan(1, "nothing", 1, 1.0))


def test_path_lists_the_modules_of_a_request() -> None:
    """An acquire enters at most 30 modules of the server, a renewal at most 12 of the client."""
    command = [sys.executable, "-m", "benchmarks", "path"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=60)
    server, client = result.stdout.partition("server, ")[2].split("client, ")
    assert len([line for line in server.splitlines() if line.startswith("    ")]) <= SERVER_MODULES_MAX
    assert 1 <= len([line for line in client.splitlines() if line.startswith("    ")]) <= CLIENT_MODULES_MAX
    assert "core/decide.py" in server
