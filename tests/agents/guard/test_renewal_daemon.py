"""The daemon: an agent's jobs live as long as its host, however long one command takes, and no longer."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from holdfast.agents.guard import host_registry
from tests.agents.guard.agents import World
from tests.support import callers
from tests.support.api import Api
from tests.support.checks import moment, wait_until
from tests.support.server import ServerProcess

SHORT = 'ttl = "10s"\n[[rule]]\npaths = "src/auth/**"\njob = "area:auth"\n'


def test_daemon_renews_during_a_long_command(world: World, api: Api) -> None:
    """No hook comes for longer than the ttl, and the job is still the agent's: the daemon renewed it."""
    world.rules(SHORT)
    assert world.host().edit("src/auth/a").passed
    first = api.status("area:auth").json()

    def was_renewed_after_expiry() -> bool:
        now = api.status("area:auth").json()
        assert now["fencing_token"] == first["fencing_token"] and now["status"] == "held"
        return moment(now["last_heartbeat_at"]) > moment(first["expires_at"])

    wait_until(was_renewed_after_expiry, seconds_max=40, every_seconds=0.2)


def test_killed_host_loses_its_jobs_immediately(world: World, api: Api) -> None:
    """kill -9 of the host: its daemon ends the session, long before the ttl, and leaves nothing behind."""
    ana, ben = world.host(), world.host()
    assert ana.edit("src/auth/a").passed
    ana.kill()
    wait_until(lambda: api.status("area:auth").json()["status"] == "free")
    assert ben.edit("src/auth/a").passed
    world.wait_for_daemons(1)
    assert len(list((world.state / "owners").iterdir())) == 1


def test_killed_daemon_is_replaced(world: World, api: Api) -> None:
    """The next hook of a living host notices that the daemon is dead, and starts another; the job was never free."""
    ana = world.host()
    assert ana.edit("src/auth/a").passed
    token = api.status("area:auth").json()["fencing_token"]
    (old,) = world.wait_for_daemons(1)
    os.kill(old, signal.SIGKILL)
    wait_until(lambda: not world.daemons())
    assert ana.edit("src/auth/a").passed
    (new,) = world.wait_for_daemons(1)
    assert new != old and api.status("area:auth").json()["fencing_token"] == token


def test_reused_pid_is_another_process(world: World, api: Api) -> None:
    """A process of the host's number that began at another moment is another process: the daemon ends the session."""
    ana = world.host()
    assert ana.edit("src/auth/a").passed
    (file,) = world.state.glob("owners/*/*/session")
    said = json.loads(file.read_text())
    pid, start, boot = said["host"].split(":")
    assert int(pid) == ana.process.pid and host_registry.is_alive(said["host"])
    said["host"] = f"{pid}:{int(start) + 1}:{boot}"
    assert not host_registry.is_alive(said["host"]) and not host_registry.is_alive(f"{pid}:{start}:another-boot")
    beside = file.with_name("beside")
    beside.write_text(json.dumps(said))
    beside.chmod(0o600)
    beside.replace(file)
    wait_until(lambda: api.status("area:auth").json()["status"] == "free")


def test_zombie_is_not_alive() -> None:
    """A host that ended is gone, also while its parent has not asked for its exit code."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        found = host_registry.read_process(process.pid)
        assert found and host_registry.is_alive(found.key)
        assert process.stdin
        process.stdin.close()
        wait_until(lambda: not host_registry.is_alive(found.key))


def test_shells_of_the_hook_are_not_the_host(world: World) -> None:
    """The host is found above `sh -c`, `env` and the like; a script that is itself the host is not passed over."""
    ana = world.host()
    edit = json.dumps(ana.fields("PreToolUse", tool_name="Write", tool_input={"file_path": "src/auth/a"}))
    script = Path(sys.executable).parent / "holdfast"
    nested = (
        f"true; env A=b bash -c 'true; sh -c \"true; {script} guard hook --host claude; exit \\$?\"; exit $?'; exit $?"
    )
    assert ana.run(nested, edit).passed
    (file,) = world.state.glob("owners/*/*/session")
    assert json.loads(file.read_text())["host"].startswith(f"{ana.process.pid}:")


def test_daemon_inherits_nothing_from_the_hook(world: World) -> None:
    """It holds no pipe of the host, so the host need not wait for it; its session and its folder are its own."""
    assert world.host().edit("src/auth/a").passed
    (pid,) = world.wait_for_daemons(1)
    process_folder = Path("/proc") / str(pid)
    assert all(
        not os.fspath((process_folder / "fd" / number).readlink()).startswith("pipe:")
        for number in ("0", "1", "2", "3")
    )
    assert (process_folder / "cwd").readlink() == Path("/") and os.getsid(pid) == pid


def test_session_survives_a_server_restart(tmp_path: Path) -> None:
    """While the server is away its time stands still: the daemon goes on, and the job is the agent's afterwards."""
    with ServerProcess.start(tmp_path / "data", tokens=callers.TOKENS) as server:
        world = World(tmp_path, {"HOLDFAST_URL": server.url, "HOLDFAST_TOKEN": callers.ALICE})
        world.rules(SHORT)
        ana = world.host()
        try:
            assert ana.edit("src/auth/a").passed
            token = Api.of(server, callers.BOB).status("area:auth").json()["fencing_token"]
            server.kill()
            wait_until(lambda: "not renewed" in world.log(), seconds_max=30)
            assert "cannot be asked" in ana.edit("src/auth/a").refused
            with server.restart() as again:
                wait_until(lambda: ana.edit("src/auth/a").passed, seconds_max=20)
                assert Api.of(again, callers.BOB).status("area:auth").json()["fencing_token"] == token
                world.close()
        finally:
            world.close()


def test_daemon_ends_the_session_after_a_server_outage(tmp_path: Path) -> None:
    """SessionEnd while the server is away: the daemon ends the session when it is back, although the host lives on."""
    with ServerProcess.start(tmp_path / "data", tokens=callers.TOKENS) as server:
        world = World(tmp_path, {"HOLDFAST_URL": server.url, "HOLDFAST_TOKEN": callers.ALICE})
        world.rules(SHORT)
        ana = world.host()
        try:
            assert ana.edit("src/auth/a").passed
            server.kill()
            assert ana.hook(ana.fields("SessionEnd", reason="clear")).passed
            assert "not released at SessionEnd" in world.log()
            with server.restart() as again:
                api = Api.of(again, callers.BOB)
                wait_until(lambda: api.status("area:auth").json()["status"] == "free", seconds_max=30)
                wait_until(lambda: not world.daemons())
        finally:
            world.close()
