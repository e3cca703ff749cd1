"""Ids: random UUIDs, request ids and secrets that nobody can guess and nobody gets twice."""

from __future__ import annotations

import re
import subprocess
import sys
import uuid

from holdfast.engine import ids


def test_ids_are_random_uuids() -> None:
    """Every id is a UUID of version 4 in its usual form, all four variants of it occur, and none comes twice."""
    made = [ids.new_uuid() for _ in range(20_000)]
    assert len(set(made)) == len(made)
    assert {text[19] for text in made} == set("89ab")
    for text in made:
        parsed = uuid.UUID(text)
        assert (parsed.version, parsed.variant, str(parsed)) == (4, uuid.RFC_4122, text)


def test_every_random_digit_is_random() -> None:
    """In each of the 30 places that chance fills, every hexadecimal digit occurs."""
    made = [ids.new_uuid().replace("-", "") for _ in range(2_000)]
    for position in set(range(32)) - {12, 16}:
        assert len({text[position] for text in made}) == 16, position


def test_ids_are_generated_in_blocks() -> None:
    """Ids are made a block at a time: far fewer functions of ours are called than ids are made."""
    calls = 0

    def note(_frame: object, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event == "call"

    sys.setprofile(note)
    try:
        for _ in range(2_000):
            ids.new_uuid()
            ids.new_request_id()
    finally:
        sys.setprofile(None)
    assert calls < 1_000


def test_forked_child_draws_its_own_ids() -> None:
    """A child process does not hand out the ids its parent has drawn but not yet used."""
    program = (
        "import os; from holdfast.engine import ids; ids.new_uuid(); child = os.fork();"
        "child and os.waitpid(child, 0); print(*(ids.new_uuid() for _ in range(50)), flush=True)"
    )
    # A process of its own, because forking one that has threads is not safe.
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    made = said.stdout.split()
    assert len(made) == len(set(made)) == 100


def test_request_ids_and_secrets_have_their_shape() -> None:
    """A request id is `req_` and 32 hexadecimal digits; a secret has the size asked for."""
    made = {ids.new_request_id() for _ in range(100)}
    assert len(made) == 100
    assert all(re.fullmatch(r"req_[0-9a-f]{32}", text) for text in made)
    assert len(ids.new_secret(48)) == 48
    assert ids.new_secret(16) != ids.new_secret(16)
