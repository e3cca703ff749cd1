"""In doubt it refuses what a rule names, holds up nothing else, and leaves nothing behind: each was once otherwise."""

from __future__ import annotations

import fcntl
import json
import os
import threading
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from holdfast.agents.guard import host_registry, owner_session, state
from holdfast.agents.guard.renewal_daemon import RenewalDaemon
from holdfast.agents.guard.server import RefusedError, Server, UnavailableError
from holdfast.agents.guard.state import Owner, Session
from tests.agents.guard.agents import SCRIPT, World
from tests.agents.guard.test_git import install, with_remote
from tests.support import callers
from tests.support.api import Api
from tests.support.checks import wait_until


@pytest.fixture
def other_program() -> Iterator[str]:
    """Another program: it answers every question with 200 and a page."""

    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"<html>")

        do_POST = do_GET  # noqa: N815 - the name that the module asks for

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with HTTPServer(("127.0.0.1", 0), Page) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def session_of(folder: Path, host: str = "") -> tuple[Owner, Session]:
    """An owner with a session, as a hook writes it."""
    owner = Owner(str(folder), "claude", "s")
    fields = dict.fromkeys(("id", "secret", "owner", "urls", "ca_file", "from_url", "from_config"), "x")
    session = Session({**fields, "urls": "http://127.0.0.1:9", "ttl_seconds": 60, "host": host, "is_proven": True})
    state.make_folder(str(folder), owner.folder)
    state.write_private(owner.folder + "/session", session.fields())
    return owner, session


@pytest.mark.parametrize("when_free", ["claim", "only-refuse"])
def test_response_of_another_program_refuses_the_call(when_free: str, other_program: str, tmp_path: Path) -> None:
    """An answer that says nothing of the job does not say that it is free."""
    world = World(tmp_path, {"HOLDFAST_URL": other_program, "HOLDFAST_TOKEN": callers.ALICE})
    world.rules(f'when_free = "{when_free}"\n[[rule]]\npaths = "a/**"\njob = "a"\nwhen_away = "let-pass"\n')
    try:
        assert "the server refused (HTTP 200)" in world.host().edit("a/x").refused
    finally:
        world.close()


def test_refused_renewal_is_not_unavailability(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that answers is not away: `let-pass` must not count."""
    _, session = session_of(tmp_path / "guard")

    def answer(*_: object, **__: object) -> tuple[int, dict[str, object]]:
        return 403, {}

    monkeypatch.setattr(Server, "call", answer)
    with pytest.raises(RefusedError):
        owner_session.renew(session, 1.0)


def test_owner_without_a_session_leaves_no_folder(tmp_path: Path) -> None:
    """A check that found no server leaves no folder, because nobody would remove it."""
    world = World(tmp_path, {"HOLDFAST_URL": "http://127.0.0.1:9", "HOLDFAST_TOKEN": callers.ALICE})
    world.rules('[[rule]]\npaths = "a/**"\njob = "a"\n')
    try:
        assert "cannot be asked" in world.host().edit("a/x").refused
        assert list((world.state / "owners").iterdir()) == []
    finally:
        world.close()


def test_unfinished_file_is_removed_with_its_owner(tmp_path: Path) -> None:
    """A file that never got its name has a secret in it, and would keep the folder from being removed."""
    owner, _ = session_of(tmp_path / "guard")
    Path(owner.folder, ".session.abc").write_text("secret")
    state.remove_folder(owner.folder)
    assert list((tmp_path / "guard" / "owners").iterdir()) == []


def test_daemon_spares_the_session_of_a_live_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The host died while the server was away, and its agent goes on in another process with the same session."""
    owner, session = session_of(tmp_path / "guard", "1:0:gone")
    this = host_registry.read_process(os.getpid())
    assert this
    asked = []

    def end_session(ended: Session, _: float) -> None:
        asked.append(ended.id)
        fields: Mapping[str, object] = {**session.fields(), "host": this.key}
        state.write_private(owner.folder + "/session", fields)  # As a hook does, once the server has the lock free.
        raise UnavailableError("away")

    monkeypatch.setattr(owner_session, "end_session", end_session)
    RenewalDaemon(owner.folder)._end_session(session)
    found = state.read_session(owner.folder)
    assert asked == ["x"] and found and found.host == this.key


def test_daemon_liveness_check_does_not_prevent_its_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """To look whether one lives, its file is locked for a moment; a hook that starts one then waits for that."""
    owner, _ = session_of(tmp_path / "guard")
    descriptor = os.open(owner.folder + "/keeper", os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    monkeypatch.setattr("time.sleep", lambda _: fcntl.flock(descriptor, fcntl.LOCK_UN))
    try:
        assert state.start_daemon(owner.folder, "/bin/true")
    finally:
        os.close(descriptor)


def test_notifications_are_never_refused(world: World) -> None:
    """At the end of a turn a refusal would keep the agent from ending it; it is in the log instead."""
    ana = world.host()
    answer = ana.hook({"hook_event_name": "Stop", "cwd": str(world.repository)})
    assert answer == (0, "", "") and "there is no session in it" in world.log()


def test_bad_input_is_refused_where_rules_apply(world: World) -> None:
    """A hook may be started elsewhere: the rules of the folder that the input names count too."""
    ana = world.host()
    fields = json.dumps(ana.fields("PreToolUse", tool_name="Write", tool_input={"somewhere": "src/auth/a"}))
    assert "does not say which file" in ana.run(f"exec {SCRIPT} guard hook --host claude", fields, world.folder).refused


def test_a_push_of_nothing_passes(world: World, api: Api) -> None:
    """git asks also if all is there already. Nothing changes then, so it needs no job."""
    with_remote(world)
    install(world)
    world.git("push", "-q", "origin", "main")
    wait_until(lambda: api.status("push-main").json()["status"] == "free")
    api.acquired("push-main", owner="ben", ttl_seconds=60)
    assert world.git("push", "origin", "main", check=False).returncode == 0
