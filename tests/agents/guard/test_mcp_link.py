"""One agent, one owner: the guard's hooks and `holdfast mcp` of one host process share a session."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.agents.guard import host_registry, state
from holdfast.agents.guard.state import Owner
from tests.agents.guard.agents import Host, World
from tests.support.api import Api
from tests.support.checks import wait_until
from tests.support.server import ServerProcess

JOB, FILE = "area:auth", "src/auth/login.py"


def owner_of(api: Api, job: str = JOB) -> str | None:
    found: dict[str, str] = api.status(job).json()
    return found.get("owner") if found["status"] == "held" else None


@pytest.fixture
def host(world: World) -> Host:
    """A host with hooks and MCP tools."""
    found = world.host()
    found.start_mcp()
    return found


def test_mcp_claim_counts_for_the_guard(world: World, host: Host, api: Api) -> None:
    """After claim_job the agent may edit, and another agent may not."""
    assert host.tool("claim_job", job=JOB)["status"] == "acquired"
    assert host.edit(FILE).passed
    assert world.host().edit(FILE).refused
    assert owner_of(api) == host.owner


def test_guarded_edit_counts_for_mcp(host: Host) -> None:
    """After a guarded edit, claim_job reports the job as the agent's own, with its fencing token."""
    assert host.edit(FILE).passed
    result = host.tool("claim_job", job=JOB)
    assert (result["status"], result["already_yours"]) == ("acquired", True) and result["fencing_token"] > 0
    assert [each["job"] for each in host.tool("my_jobs")["jobs"]] == [JOB]


def test_mcp_release_counts_for_the_guard(world: World, host: Host, api: Api) -> None:
    """release_job releases a job that the guard claimed; another agent gets it, and the first is refused then."""
    assert host.edit(FILE).passed
    assert host.tool("release_job", job=JOB)["status"] == "released"
    assert owner_of(api) is None
    assert world.host().edit(FILE).passed
    assert host.edit(FILE).refused


def test_guard_release_counts_for_mcp(world: World, host: Host, api: Api) -> None:
    """`holdfast guard release` ends what MCP claimed, and the next result of a tool reports the loss."""
    assert host.tool("claim_job", job=JOB)["status"] == "acquired"
    assert world.holdfast("guard", "release", "--owner", host.owner).returncode == 0
    assert owner_of(api) is None
    lost: list[dict[str, str]] = wait_until(lambda: host.tool("my_jobs").get("lost") or False)
    assert [each["job"] for each in lost] == [JOB]
    assert host.tool("claim_job", job=JOB)["status"] == "acquired"
    assert host.edit(FILE).passed


def test_claim_without_a_hook_is_joined_by_the_guard(host: Host, api: Api) -> None:
    """If hooks do not see MCP calls, the guard joins the session of its host's only MCP process."""
    assert host.tool("claim_job", hooked=False, job=JOB)["status"] == "acquired"
    name = owner_of(api)
    assert host.edit(FILE).passed
    assert owner_of(api) == name
    assert host.edit("src/billing/a.py").passed
    assert {each["job"] for each in host.tool("my_jobs", hooked=False)["jobs"]} == {JOB, "area:billing"}


def test_given_owner_names_the_shared_session(world: World, api: Api) -> None:
    """The name given with `--owner` is that of the session which guard and MCP share."""
    host = world.host()
    host.start_mcp("--owner", "ana")
    assert host.edit(FILE).passed
    assert owner_of(api) == "ana"
    assert host.tool("claim_job", job=JOB)["already_yours"] is True


def test_guard_keeps_claims_after_mcp_ends(host: Host, api: Api) -> None:
    """With a guard, the end of the MCP process ends nothing; the end of the host does."""
    assert host.tool("claim_job", job=JOB)["status"] == "acquired"
    host.stop_mcp()
    assert owner_of(api) == host.owner
    assert host.edit(FILE).passed
    host.start_mcp()
    assert [each["job"] for each in host.tool("my_jobs")["jobs"]] == [JOB]
    host.kill()
    wait_until(lambda: owner_of(api) is None)


def test_last_mcp_process_ends_its_session_without_a_guard(world: World, api: Api) -> None:
    """Without hooks, the end of the MCP process releases what it claimed."""
    host = world.host()
    host.start_mcp()
    assert host.tool("claim_job", hooked=False, job=JOB)["status"] == "acquired"
    host.stop_mcp()
    assert owner_of(api) is None
    assert not world.daemons()


def test_two_host_sessions_in_one_process_are_not_linked(world: World, host: Host, api: Api) -> None:
    """Calls of two sessions cannot be told apart: nothing is shared, and the refusal names the remedy."""
    first = host.session
    assert host.tool("claim_job", job="other")["status"] == "acquired"
    host.session = first + "-2"
    assert host.tool("claim_job", job=JOB)["status"] == "acquired"
    assert owner_of(api) not in {host.owner, f"claude:{first}"}
    refusal = host.edit(FILE).refused
    assert "several sessions" in refusal and "guard release --owner" in refusal
    assert world.holdfast("guard", "release", "--owner", f"claude:{first}").returncode == 0
    assert host.tool("release_job", job=JOB)["status"] == "released"
    assert host.edit(FILE).passed
    assert host.tool("claim_job", job=JOB)["already_yours"] is True


def test_next_host_session_is_linked_after_the_first_ends(host: Host, api: Api) -> None:
    """A session that follows another in the same process, as after /clear, is linked again."""
    assert host.tool("claim_job", job=JOB)["status"] == "acquired"
    host.hook(host.fields("SessionEnd", reason="clear"))
    assert owner_of(api) is None
    host.session += "-2"
    assert host.tool("claim_job", job=JOB)["status"] == "acquired"
    assert owner_of(api) == host.owner
    assert host.edit(FILE).passed


def test_subagent_owns_what_it_claims_through_mcp(host: Host, api: Api) -> None:
    """claim_job by a subagent counts for that subagent alone, and ends with it."""
    assert host.tool("claim_job", agent="sub", job=JOB)["status"] == "acquired"
    assert owner_of(api) == f"{host.owner}/sub"
    assert host.edit(FILE, agent="sub").passed
    assert host.edit(FILE).refused
    assert host.tool("claim_job", job=JOB)["status"] == "held"
    assert host.tool("my_jobs")["jobs"] == []
    assert [each["job"] for each in host.tool("my_jobs", agent="sub")["jobs"]] == [JOB]
    host.hook(host.fields("SubagentStop", agent="sub"))
    assert owner_of(api) is None
    assert host.edit(FILE).passed


def test_same_call_of_two_agents_at_once_is_refused(host: Host, api: Api) -> None:
    """If two agents make the same call at the same moment, neither gets the job by mistake; the next call succeeds."""
    for number, agent in enumerate(["one", "two"]):
        assert host.before("mcp__holdfast__claim_job", {"job": JOB}, agent=agent, use=f"use-{number}").passed
    assert "error" in host.tool("claim_job", hooked=False, job=JOB)
    assert "error" in host.tool("claim_job", hooked=False, job=JOB)
    assert owner_of(api) is None
    assert host.tool("claim_job", agent="one", job=JOB)["status"] == "acquired"
    assert owner_of(api) == f"{host.owner}/one"


def test_process_outside_the_host_is_not_linked(world: World, host: Host, api: Api) -> None:
    """A variable that names the host's process proves nothing: only the kernel's ancestry does."""
    assert host.edit(FILE).passed
    other = world.host(**{host_registry.VARIABLE: str(host.process.pid)})
    other.start_mcp()
    assert other.tool("claim_job", hooked=False, job=JOB)["status"] == "held"
    assert owner_of(api) == host.owner


def test_hidden_ancestors_are_reported(world: World, api: Api) -> None:
    """In a PID namespace the tools cannot see their host: nothing is linked, and the first result says why."""
    if subprocess.run(["unshare", "--pid", "--fork", "--mount-proc", "true"], check=False).returncode:
        pytest.skip("no PID namespace can be made here")
    host = world.host()
    assert host.edit("src/billing/a.py").passed
    host.start_mcp(prefix="unshare --pid --fork --mount-proc --kill-child")
    result = host.tool("claim_job", hooked=False, job=JOB)
    assert result["status"] == "acquired" and "ancestors" in result["warning"]
    assert host.edit(FILE).refused


def test_unseen_call_is_refused_where_hooks_see_calls(host: Host, api: Api) -> None:
    """A call whose hook failed or saw other arguments is not taken for the main agent's; reading is served."""
    assert host.tool("my_jobs")["jobs"] == []
    assert "error" in host.tool("claim_job", hooked=False, job=JOB)
    assert owner_of(api) is None
    assert host.tool("get_job_owner", hooked=False, job=JOB)["status"] == "free"
    assert host.tool("claim_job", job=JOB)["status"] == "acquired"
    assert "error" in host.tool("release_job", hooked=False, job=JOB)
    assert owner_of(api) == host.owner


def test_resumed_name_does_not_take_the_session_of_a_live_host(world: World, api: Api) -> None:
    """`--owner NAME` after a kill resumes nothing that the guard of another live host has."""
    first, second = world.host(), world.host()
    first.start_mcp("--owner", "ana")
    assert first.tool("claim_job", hooked=False, job=JOB)["status"] == "acquired"
    assert first.edit(FILE).passed
    first.run("pkill -9 -f 'holdfast mcp --owner ana' -P $PPID")
    second.start_mcp("--owner", "ana")
    assert second.tool("claim_job", job=JOB)["status"] == "held"
    assert second.edit(FILE).refused
    assert first.edit(FILE).passed


def test_mcp_claim_does_not_replace_a_persons_consent(world: World) -> None:
    """Under a rule that asks, a job that was claimed through MCP is asked about once, like any other."""
    world.rules('[[rule]]\npaths = "src/**"\njob = "area:auth"\nwhen_free = "ask"\n')
    host = world.host()
    host.start_mcp()
    assert host.tool("claim_job", job=JOB)["status"] == "acquired"
    assert not host.edit(FILE).passed
    assert world.holdfast("guard", "agree", JOB).returncode == 0
    assert host.edit(FILE).passed and host.edit(FILE).passed


def test_one_host_session_in_two_processes_is_refused(world: World) -> None:
    """Two live processes with the same host session are not one owner: the second is refused until the first ends."""
    first, second = world.host(), world.host()
    second.session = first.session
    assert first.edit(FILE).passed
    assert str(first.process.pid) in second.edit(FILE).refused
    first.kill()
    wait_until(lambda: second.edit(FILE).passed)


def test_refused_call_releases_nothing_of_a_parallel_call(world: World, api: Api) -> None:
    """A call that needs two jobs gets both or claims neither, so it takes nothing from a parallel call."""
    world.rules('[[rule]]\npaths = "src/**"\njob = "a"\n[[rule]]\npaths = "src/auth/**"\njob = "b"\n')
    host = world.host()
    api.acquired("b", owner="bob")
    assert host.edit(FILE).refused
    assert owner_of(api, "a") is None
    assert host.edit("src/other.py").passed
    assert host.edit(FILE).refused
    assert owner_of(api, "a") == host.owner


def test_granted_wait_stays_with_an_agent_under_the_guard(world: World, host: Host, api: Api) -> None:
    """A turn that came between two calls is not given up in a session that the guard keeps."""
    other = api.acquired(JOB, owner="bob")
    assert host.tool("wait_for_job", job=JOB, seconds=1)["status"] == "waiting"
    api.release(JOB, other["lease_id"])
    wait_until(lambda: owner_of(api) == host.owner)
    assert host.edit(FILE).passed
    assert host.tool("my_jobs")["granted"] == [JOB]


def test_wait_ends_when_sessions_are_ambiguous(world: World, host: Host, api: Api) -> None:
    """A wait of one host session does not end up with a second one in the same process."""
    other = api.acquired(JOB, owner="bob")
    assert host.tool("wait_for_job", job=JOB, seconds=1)["status"] == "waiting"
    host.session += "-2"
    assert host.tool("my_jobs")["jobs"] == []
    api.release(JOB, other["lease_id"])
    assert host.tool("claim_job", job=JOB)["status"] == "acquired"
    assert owner_of(api) not in {host.owner, host.owner.removesuffix("-2")}


def test_session_end_detaches_every_agent_without_a_response(world: World, server: ServerProcess, api: Api) -> None:
    """If the server does not answer at the end of a session, the daemons end the sessions of all its agents."""
    host = world.host()
    assert host.edit(FILE).passed
    assert host.edit("src/billing/a.py", agent="sub").passed
    server.pause()
    try:
        host.hook(host.fields("SessionEnd", reason="exit"))
    finally:
        server.resume()
    wait_until(lambda: owner_of(api) is None and owner_of(api, "area:billing") is None)


def test_end_of_mcp_leaves_the_session_of_a_dead_daemon(world: World, host: Host, api: Api) -> None:
    """If the daemon was killed, the end of the MCP process ends nothing while the host lives."""
    assert host.tool("claim_job", job=JOB)["status"] == "acquired"
    for pid in world.wait_for_daemons(1):
        os.kill(pid, signal.SIGKILL)
    host.stop_mcp()
    assert owner_of(api) == host.owner
    assert host.edit(FILE).passed


def test_calls_are_taken_once_by_tool_and_subject(tmp_path: Path) -> None:
    """Each note serves one call of the same tool and job; notes that were never served are bounded."""
    base, mark = str(tmp_path / "guard"), host_registry.process_key(os.getpid())
    main, sub = (Owner(base, "claude", "s", agent) for agent in ("", "sub"))

    def note(owner: Owner, job: str, use: str = "") -> None:
        host_registry.record_call(base, mark, owner, tool="claim_job", subject=job, use=use)

    def taken(job: str, tool: str = "claim_job") -> str | None:
        try:
            found = host_registry.take_call(base, mark, tool, job)
        except host_registry.UnseenCallError:
            return "unseen"
        return found.name if found else None

    assert taken("a") is None
    for owner, job, use in [(sub, "a", "1"), (sub, "a", "2"), (sub, "a", "2"), (main, "b", "3")]:
        note(owner, job, use)
    assert taken("a", "release_job") == "unseen"
    assert [taken("a") for _ in range(3)] == [sub.name, sub.name, "unseen"]
    assert [taken("b") for _ in range(2)] == [main.name, "unseen"]
    for number in range(host_registry.CALLS_MAX + 5):
        note(main, str(number))
    assert taken("0") == "unseen" and taken("5") == main.name
    host_registry.forget_session(base, "claude-s")
    assert host_registry.host_sessions(base, mark) == set() and taken("9") is None


def test_dead_hosts_are_removed(tmp_path: Path) -> None:
    """The notes below a dead host process are removed when another host appears."""
    base = str(tmp_path / "guard")
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        found = host_registry.read_process(process.pid)
        assert found
        host_registry.record_call(base, found.key, Owner(base, "claude", "old"), tool="claim_job", subject="a")
    host_registry.record_call(
        base, host_registry.process_key(os.getpid()), Owner(base, "claude", "new"), tool="claim_job", subject="a"
    )
    assert host_registry.all_sessions(base) == {"claude-new"}
    assert len(list(Path(base, host_registry.HOSTS).iterdir())) == 1
    assert all(path.stat().st_mode & 0o77 == 0 for path in Path(base).rglob("*") if path.name != state.LOG)


def test_two_hosts_are_two_owners(world: World, api: Api) -> None:
    """A claim through the MCP process of one host does not count for another host."""
    one, two = world.host(), world.host()
    for each in (one, two):
        each.start_mcp()
    assert one.tool("claim_job", job=JOB)["status"] == "acquired"
    assert two.tool("claim_job", job=JOB)["status"] == "held"
    assert two.edit(FILE).refused
    assert owner_of(api) == one.owner
