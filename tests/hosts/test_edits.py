"""Edits and shell commands of real agents under the guard."""

from __future__ import annotations

from tests.hosts.conftest import Cell
from tests.hosts.expected import ALLOWED, REFUSED
from tests.hosts.hosts import Host
from tests.hosts.world import CONTENT, NEW, OLD, REFUSAL, World
from tests.support.checks import wait_until

WRITES = (
    "echo x >> src/auth/login.py",
    "sed -i s/1/2/ src/auth/login.py",
    "cd src && rm auth/login.py",
    "python3 -c 'print(1)' > src/auth/new.py",
    "bash -lc 'echo y > src/auth/new.py'",
    "sed -i s/1/2/ $(grep -rl return src)",
    "sed -i s/1/2/ $(git ls-files src)",
    "for f in $(find src -name '*.py'); do rm $f; done",
    "find src -name '*.py' | while read f; do rm $f; done",
    'echo x > "$(pwd)/src/auth/new.py"',
    "rm -rf ../repo*/src",
)
READS = ("cat src/auth/login.py", "echo hi > hi.txt && echo fine")


def test_edit_claims_free_job(host: Host, world: World, cell: Cell) -> None:
    """The guard claims a free job on the way to an edit, and releases it when the host ends."""
    world.prepare(host)
    owners: list[str | None] = []
    results = world.run(host, [*host.edit(world.file, OLD, NEW), lambda: owners.append(world.owner())])
    assert owners[0], owners
    wait_until(world.is_free)
    cell.is_now(ALLOWED if world.file.read_text() == CONTENT.replace(OLD, NEW) else REFUSED, results)


def test_edit_respects_held_job(host: Host, world: World, cell: Cell) -> None:
    """An agent can neither change nor create a file whose job another principal holds; other files are free."""
    world.prepare(host)
    world.hold()
    new, other = world.file.with_name("new.py"), world.repository / "other.py"
    results = world.run(
        host, [*host.edit(world.file, OLD, NEW), *host.write(new, "x = 1\n"), *host.write(other, "x = 1\n")]
    )
    assert other.exists(), results
    is_refused = world.file.read_text() == CONTENT and not new.exists() and REFUSAL in "\n".join(results)
    cell.is_now(REFUSED if is_refused else ALLOWED, results)


def test_shell_respects_held_job(host: Host, world: World, cell: Cell) -> None:
    """Each form of a writing command is refused in an area that another principal holds; reading is allowed."""
    world.prepare(host)
    world.hold()
    results = world.run(host, [call for command in (*READS, *WRITES) for call in host.shell(command)])
    assert len(results) == len(READS) + len(WRITES), results
    assert not any(REFUSAL in result for result in results[: len(READS)]), results
    passed = [command for command, result in zip(WRITES, results[len(READS) :], strict=True) if REFUSAL not in result]
    is_unchanged = (
        world.file.exists() and world.file.read_text() == CONTENT and len(list(world.file.parent.iterdir())) == 1
    )
    cell.is_now(REFUSED if is_unchanged and not passed else ALLOWED, passed)


def test_interactive_shell_is_refused(host: Host, world: World, cell: Cell) -> None:
    """A host that types into a running shell without a hook cannot start one in a guarded repository."""
    world.prepare(host)
    world.hold()
    new = world.file.with_name("new.py")
    results = world.run(host, host.interactive_shell(f"echo x > {new}"))
    cell.is_now(ALLOWED if new.exists() else REFUSED, results)
