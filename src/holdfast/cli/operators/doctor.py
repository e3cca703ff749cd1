"""`holdfast doctor`: verdicts on a server, an unused data directory, a backup, or a shared store.

It changes nothing: it rolls back the write that it tries on a store. A verdict is a line: ok, warn or FAIL, and a
remedy.

    a server        every address: reachable, ready; then by one that is ready: store, disk, token, clock, version
    --data DIR      directory, access, disk, journal (both files are read, replayed and compared), key
    --data FILE     access, backup (read to its end)
    --store URL     store, round trip, leader, nodes, settings, pooler, replicas, timeline, writes, space, journal
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
from collections.abc import Iterator
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click
import msgspec

from holdfast.cli.shared import output
from holdfast.cli.shared.options import as_json, asks_server, server_options, wants_json
from holdfast.errors import ServerError, Unreachable
from holdfast.privatefiles import FOR_OTHERS, ROOT, NotOursError, check_file, how_to_be, user_named
from holdfast.sanitize import in_json

if TYPE_CHECKING:
    from holdfast.cli.operators.probe import Answer, Probe
    from holdfast.engine.migration import StoreAddress
    from holdfast.journal.interface import JournalError
    from holdfast.journal.postgres.admin import Facts

OK = 200
ANSWER_SECONDS = 6.0  # A node without a leader answers after 5 s.
CLOCK_OFF_MS_MAX = 5_000
NOT_ITS_NAME = 421
DISK_FREE_BYTES_LOW = 1024**3
DISK_FREE_BYTES_MIN = 64 * 1024**2
ROUND_TRIP_MS_HIGH = 20.0  # Every answer waits for at least one.
SILENT_MS = 10_000
TAIL_BYTES_HIGH = 1024**3
DAMAGED = "stop all nodes, put a backup of the database in its place, then: holdfast store restored"
COLOURS = {"ok": "green", "warn": "yellow", "FAIL": "red"}


class Verdict(msgspec.Struct, frozen=True):
    name: str
    status: Literal["ok", "warn", "FAIL"]
    text: str
    next: str | None = None


def _verdict(status: Literal["ok", "warn", "FAIL"], name: str, text: str, following: str | None = None) -> Verdict:
    return Verdict(name, status, text, following)


ok, warn, fail = partial(_verdict, "ok"), partial(_verdict, "warn"), partial(_verdict, "FAIL")


@click.command(short_help="Check the server, store, access token and clocks.")
@click.option(
    "--data",
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="Look at this data directory, or this backup, instead of a server.",
)
@click.option("--store", metavar="URL", help="Look at this store that nodes share instead.")
@click.option("--dump", is_flag=True, help="Print the journal in --data as JSON lines, and nothing else.")
@as_json
@asks_server
def doctor(*, data: Path | None, store: str | None, dump: bool) -> int:
    """Say whether the server, its store, your access token and the clocks are well.

    With --data it looks at a data directory of a stopped server, or at a backup, instead; with --store at a store that
    nodes share, and at its nodes. It ends with 0 when nothing has failed, with 2 when something has, and with 69 when
    the server cannot be reached.
    """
    if dump:
        if data is None:
            raise click.UsageError("--dump needs the directory; write it as --dump --data DIR")
        return _dump(data)
    if data is not None and store is not None:
        raise click.UsageError("--data and --store exclude each other; look at one after the other")
    if store is not None:
        from holdfast.engine import migration

        checks = store_checks(migration.named(store, os.environ))
    elif data is not None:
        checks = _directory_checks(data)
    else:
        from holdfast.cli.operators.probe import Probe

        with Probe.find(server_options()) as server:
            checks = list(_server_checks(server))
    failed = [check for check in checks if check.status == "FAIL"]
    if wants_json():
        output.say_json({"ok": not failed, "checks": checks})
    else:
        for check in checks:
            _show(check)
    if any(check.name == "reachable" for check in failed):
        return output.UNREACHABLE
    return output.FAILED if failed else output.OK


def _show(check: Verdict) -> None:
    word = click.style(f"{check.status:4}", fg=COLOURS[check.status], bold=check.status == "FAIL")
    following = f" -> {check.next}" if check.next else ""
    output.say(f"{word}  {check.name:11} {output.plain(check.text + following)}")


# A server.


def _server_checks(server: Probe) -> Iterator[Verdict]:
    """Check each address, then the server, through an address that is ready."""
    with server.each() as nodes:
        met = [(node, *_meet(node)) for node in nodes]
        there = [(node, ready) for node, _, ready in met if ready is not None]
        well = [node for node, ready in there if ready.status == OK]
        for node, reachable, ready in met:
            # While another address serves, a failure is a warning.
            yield reachable if ready is not None or not there else _milder(reachable)
            if ready is not None:
                found = _ready(ready, f"{node.url}: " if len(nodes) > 1 else "")
                yield _milder(found) if well and found.status == "FAIL" else found
        if there:
            yield from _checks_by((well or [there[0][0]])[0])


def _milder(verdict: Verdict) -> Verdict:
    return msgspec.structs.replace(verdict, status="warn")


def _meet(node: Probe) -> tuple[Verdict, Answer | None]:
    """Ask an address whether it is ready. None: no answer, or not from a Holdfast server."""
    began_ms = output.monotonic_ms()
    try:
        ready = node.ask("/readyz", ANSWER_SECONDS)
    except Unreachable as error:
        return _unreachable(node, error), None
    where = f"{node.url} (from {node.url_origin})"
    if not (_is_ready_of_ours(ready) or node.is_refusal(ready)):
        return _another_program(ready, where), None
    return ok("reachable", f"{where}, {output.monotonic_ms() - began_ms} ms"), ready


def _unreachable(node: Probe, error: Unreachable) -> Verdict:
    text = f"no answer from {error.url}: {error.problem} (the address is from {node.url_origin})"
    hint = error.hint or "start it with `holdfast serve`, or name another with HOLDFAST_URL"
    return fail("reachable", text, hint)


def _checks_by(server: Probe) -> Iterator[Verdict]:
    """Check store, token, clock and version through one node."""
    try:
        health = server.ask("/health", ANSWER_SECONDS)
        yield _store(server, health)
        if isinstance(free := _field(health, "disk_free_bytes"), int):
            yield _disk(free)
        asked_ms = output.wall_ms(output.now())
        status = server.ask("/status", ANSWER_SECONDS)
        answered_ms = output.wall_ms(output.now())
        if server.lacks_leader(status):
            # Only the leader knows tokens and the time.
            hint = "`holdfast nodes` shows what each node says; `holdfast doctor --store URL` looks at the store"
            yield fail("leader", "no node leads right now", hint)
            return
        if status.status == NOT_ITS_NAME:
            # Under a wrong name the server only answers `/health`.
            yield fail("name", server.refusal(status), "add the name, or use one that it has, or its IP address")
            return
        yield _token(server)
        yield from _clock_and_version(status, asked_ms, answered_ms)
    except Unreachable as error:
        yield _unreachable(server, error)


def _is_ready_of_ours(answer: Answer) -> bool:
    """Return whether a Holdfast server answers. Others have a similar `status`, but not its request id."""
    is_ours = answer.headers.get("X-Request-Id", "").startswith("req_")
    return is_ours and isinstance(_field(answer, "status"), str)


def _another_program(answer: Answer, where: str) -> Verdict:
    program = answer.headers.get("Server", "").strip()
    named = f" ({program:.60})" if program else ""
    if answer.status in {502, 503, 504}:
        text = f"a proxy{named} answers at {where} with {answer.status}, and the server behind it does not"
        return fail("reachable", text, "look whether that server runs, and where the proxy sends requests")
    text = f"another program{named} answers at {where}, and no Holdfast server"
    return fail("reachable", text, "check host and port: `holdfast serve` says its own when it starts")


def _ready(answer: Answer, where: str) -> Verdict:
    if answer.status == OK:
        return ok("ready", f"{where}it takes requests")
    text = f"{where}it answered {answer.status}: {_field(answer, 'details') or 'no details'}"
    return fail("ready", text, "look at the server's log")


def _store(server: Probe, answer: Answer) -> Verdict:
    details = _field(answer, "details") or "no details"
    is_shared = server.has_shared_store(answer)
    if answer.status == OK and _field(answer, "status") == "ok":
        if server.follows(details):
            return ok("store", f"{_field(answer, 'storage')}; {details}")
        size_bytes = _field(answer, "db_size_bytes")
        size = output.size(size_bytes) if isinstance(size_bytes, int) else "of unknown size"
        text = f"{_field(answer, 'storage')}, {size}"
        if details == "ok":
            return ok("store", text)
        # It serves, but its archivist fails.
        where = "the database, and at the server's log" if is_shared else "the server's disk and log"
        return warn("store", f"{text}; {details}", f"look at {where}")
    text = f"it answered {answer.status}: {details}"
    hint = "look at the server's disk and log; `holdfast doctor --data DIR` once it is stopped"
    if is_shared:
        hint = "`holdfast doctor --store URL` looks at the database, and the server's log says more"
    return fail("store", text, hint)


def _token(server: Probe) -> Verdict:
    how = "put one of this server into HOLDFAST_TOKEN, or its file into HOLDFAST_TOKEN_FILE"
    if not server.has_token:
        return fail("token", "there is no access token for this server", how)
    try:
        answer = server.ask("/locks?limit=1")
    except ServerError as error:
        return fail("token", str(error), "try again")
    origin = f"(from {server.token_origin})"
    accepted = "access token accepted" if server.secret is None else f"accepted, it is {server.secret}"
    match answer.status:
        case 200:
            return ok("token", f"{accepted} {origin}")
        case 401 | 429:
            return fail("token", f"access token not accepted {origin}: {server.refusal(answer)}", how)
        case 403 if server.secret is not None:
            return ok("token", f"{accepted} {origin}")
        case 403:
            # The server names what is missing: a scope, or another prefix.
            return warn("token", f"accepted {origin}, but it may not look around: {server.refusal(answer)}")
        case _:
            return fail("token", f"{origin} {server.refusal(answer)}", "look at the server's log")


def _clock_and_version(answer: Answer, asked_ms: int, answered_ms: int) -> Iterator[Verdict]:
    from holdfast import __version__

    there_ms = _wall_of(answer)
    if there_ms is None:
        yield warn("clock", "the server did not say what time it has", "check that this is a Holdfast server")
    else:
        off_ms = _apart_ms(there_ms, asked_ms, answered_ms)
        text = f"{abs(off_ms) / 1000:.1f} s {'ahead of' if off_ms > 0 else 'behind'} the server's"
        if abs(off_ms) <= CLOCK_OFF_MS_MAX:
            yield ok("clock", text)
        else:
            hint = (
                "no lease depends on it, but times for people and the expiry of access tokens do: set the clocks right"
            )
            yield warn("clock", text, hint)
    version = _field(answer, "version")
    if version is None:
        yield warn("version", "the server did not say which one it has", "check that this is a Holdfast server")
    elif version == __version__:
        yield ok("version", f"{version} on both sides")
    else:
        yield warn("version", f"the server has {version}, this is {__version__}", "use the same on both sides")


def _apart_ms(there_ms: int, asked_ms: int, answered_ms: int) -> int:
    """Return how far our clock is ahead, at least: the server read its own at any time in between."""
    if there_ms < asked_ms:
        return asked_ms - there_ms
    return min(0, answered_ms - there_ms)


def _wall_of(answer: Answer) -> int | None:
    try:
        return round(datetime.fromisoformat(str(_field(answer, "time"))).timestamp() * 1_000)
    except ValueError:
        return None


def _field(answer: Answer, name: str) -> Any:  # noqa: ANN401 - JSON is whatever the server sent
    body = answer.json()
    return body.get(name) if isinstance(body, dict) else None


# A data directory.


def _directory_checks(data: Path) -> list[Verdict]:
    if data.is_file():
        return _backup_checks(data)
    if not data.is_dir():
        return [fail("directory", f"{data} is not a directory", "name the one that the server was started with")]
    if (owner := data.stat().st_uid) not in {os.geteuid(), ROOT}:
        text = f"it belongs to user {user_named(owner)}, and you are user {user_named(os.geteuid())}"
        return [ok("directory", str(data)), fail("access", f"nothing was looked at: {text}", how_to_be(owner))]
    free = shutil.disk_usage(data).free
    return [ok("directory", str(data)), _permissions(data), _disk(free), _journal(data), _key(data)]


def _backup_checks(file: Path) -> list[Verdict]:
    from holdfast.engine.restore import read_backup
    from holdfast.journal.backup import MAGIC
    from holdfast.journal.interface import JournalError, JournalTooNewError

    with file.open("rb") as opened:
        if opened.read(len(MAGIC)) != MAGIC:
            text = f"{file} is a file, and no backup"
            return [fail("directory", text, "name the directory that the server was started with")]
    checks = [ok("access", "yours to read, and nobody else's")]
    if file.stat().st_mode & FOR_OTHERS:
        hint = f"it holds the server's key: chmod 600 '{file}'"
        checks = [warn("access", f"other users may use {file}", hint)]
    try:
        found = read_backup(file)
    except JournalTooNewError as error:
        return [*checks, _refused("backup", error)]
    except JournalError as error:
        hint = "take another; nothing can be restored from this one"
        return [*checks, fail("backup", error.problem, hint)]
    about = found.about
    made_at = output.at_ms(about.wall_ms)
    when = f"{output.clock(made_at, output.now())} ({output.ago(made_at, output.now())})"
    text = f"whole: {found.totals.records} records of history, as of record {about.seq} at {when}, by {about.version}"
    return [*checks, ok("backup", f"{text}; {len(found.leases())} leases live in it")]


def _permissions(data: Path) -> Verdict:
    from holdfast.api.auth.secrets import KEY_FILE
    from holdfast.journal.sqlite.journal import check_files

    paths = [data, *(path for path in sorted(data.iterdir()) if path.is_file())]
    if closed := [path for path in paths if not os.access(path, os.R_OK | os.W_OK)]:
        hint = "look as the user the server runs as"
        if data.stat().st_uid == os.geteuid() != closed[0].stat().st_uid:
            hint = f"it is not yours, and the directory is: let root run: chown {os.geteuid()} '{closed[0]}'"
        return fail("access", f"you may not read and write {closed[0]}", hint)
    # The checks of a server: this process runs as its user, or the directory is root's.
    try:
        check_files(data)
        with contextlib.suppress(FileNotFoundError):
            check_file(data / KEY_FILE, (data / KEY_FILE).lstat())
    except NotOursError as error:
        return fail("access", str(error), "no server starts on it as it is")
    if not data.stat().st_mode & FOR_OTHERS:
        return ok("access", "yours to read and write, and nobody else's")
    if open_ones := [path for path in paths[1:] if path.stat().st_mode & FOR_OTHERS]:
        return warn("access", f"other users may use {open_ones[0]}", f"chmod go= '{data}' '{data}'/*")
    return ok("access", "yours to read and write; others may look into the directory, and use no file in it")


def _disk(free: int) -> Verdict:
    text = f"{output.size(free)} free"
    if free < DISK_FREE_BYTES_MIN:
        return fail("disk", text, "free some space: a full disk stops new claims")
    if free < DISK_FREE_BYTES_LOW:
        return warn("disk", text, "free some space before it is full")
    return ok("disk", text)


def _journal(data: Path) -> Verdict:
    from holdfast.api.auth.secrets import KEY_FILE
    from holdfast.core.events import Restored
    from holdfast.journal.interface import JournalError, JournalLockedError
    from holdfast.journal.sqlite.inspect import inspect

    try:
        found = inspect(data, witnesses=(KEY_FILE,))
    except JournalLockedError as error:
        hint = ". ".join(error.remedies) or "`holdfast doctor` without --data asks the server"
        return warn("journal", error.problem, hint)
    except JournalError as error:
        return _refused("journal", error)
    if found.problems:
        more = f" (and {len(found.problems) - 1} more)" if len(found.problems) > 1 else ""
        return fail("journal", f"{found.problems[0]}{more}", ". ".join(found.remedies) or None)
    text = _counted(found.records, found.last_seq, found.archived_upto)
    if found.restored is not None and isinstance(event := found.restored.event, Restored):
        now = output.now()
        text += f"; restored {output.ago(output.at_ms(found.restored.wall_ms), now)}"
        text += f" from a backup of {output.clock(output.at_ms(event.backup_wall_ms), now)}"
        text += f", with fencing tokens from {event.last_token + 1} on"
    return ok("journal", text)


def _counted(records: int, last_seq: int, archived_upto: int) -> str:
    since = last_seq - archived_upto
    return f"{records} records, all whole; the last is {last_seq}, and {since} are not archived yet"


def _refused(name: str, error: JournalError) -> Verdict:
    return fail(name, error.problem, ". ".join(error.remedies) or None)


def _key(data: Path) -> Verdict:
    from holdfast.api.auth.secrets import KEY_BYTES, KEY_FILE

    file = data / KEY_FILE
    if not file.is_file():
        hint = "restore it from a backup, or let the next start make a new one: session secrets of before will not work"
        return warn("key", f"{file} is not there", hint)
    if file.stat().st_size != KEY_BYTES:
        return fail("key", f"{file} is not a key of {KEY_BYTES} bytes", "restore it from a backup")
    return ok("key", str(file))


def _dump(data: Path) -> int:
    from holdfast.journal.interface import JournalError
    from holdfast.journal.sqlite.inspect import dump

    try:
        for record in dump(data):
            # Not `say_json_line`, which flushes each line: there may be millions.
            sys.stdout.buffer.write(in_json(msgspec.json.encode(record).decode()).encode() + b"\n")
    except JournalError as error:
        output.complain(str(error))
        return output.FAILED
    return output.OK


# A store that nodes share.


def store_checks(address: StoreAddress) -> list[Verdict]:
    from holdfast.engine import migration
    from holdfast.journal.interface import JournalError

    try:
        facts, round_trip_ms = migration.facts(address)
    except JournalError as error:
        return [_refused("store", error)]
    return [*_store_verdicts(facts, round_trip_ms, address), _store_journal(address)]


def _store_journal(address: StoreAddress) -> Verdict:
    from holdfast.engine import migration
    from holdfast.journal.interface import DeposedError, JournalError

    try:
        found = migration.contents(address, lambda records: output.progress(f"{records} records read …"))
    except DeposedError:
        return warn("journal", "another node took the seat while it was looked at", "ask again")
    except JournalError as error:
        return fail("journal", f"not all of it can be read: {error.problem}", ". ".join(error.remedies) or None)
    finally:
        output.progress("")
    if found.problem is not None:
        return fail("journal", found.problem, DAMAGED)
    return ok("journal", _counted(found.records, found.last_seq, found.archived_upto))


def _store_verdicts(facts: Facts, round_trip_ms: float, address: StoreAddress) -> Iterator[Verdict]:
    version = f"PostgreSQL {facts.server.version // 10_000}.{facts.server.version % 10_000}"
    yield ok("store", f"{address.shown}, {version}, schema {address.schema}")
    round_trip = f"{round_trip_ms:.1f} ms there and back"
    if round_trip_ms > ROUND_TRIP_MS_HIGH:
        yield warn("round trip", round_trip, "every answer waits for it: run nodes near to the database")
    else:
        yield ok("round trip", round_trip)
    yield _leader(facts)
    yield from _nodes(facts)
    # Connecting refused insufficient settings.
    wanted = ("synchronous_commit", "fsync", "full_page_writes")
    yield ok("settings", ", ".join(f"{name} {facts.server.settings[name]}" for name in wanted))
    if facts.server.is_pooled:
        hint = "connect directly: a pooler drops what our sessions set, and nothing is promised behind it"
        yield warn("pooler", "something between us and the server moves statements between sessions", hint)
    else:
        yield ok("pooler", "none")
    yield _replicas(facts)
    yield _identity(facts)
    yield _writes(facts)
    yield _space(facts)
    yield ok("format", f"records of format {facts.leadership.format}, tables of version {facts.schema_version}")


def _leader(facts: Facts) -> Verdict:
    leadership = facts.leadership
    running = ", ".join(sorted(peer.node for peer in facts.peers if peer.seen_ms_ago < SILENT_MS))
    hint = f"/readyz and the log of each that runs say why: {running}" if running else "start a node on it"
    if not leadership.is_held:
        if leadership.epoch == 0:
            return warn("leader", "nobody has ever led", hint)
        return fail("leader", f"nobody leads; the last epoch was {leadership.epoch}", hint)
    now = output.now()
    since = output.since(output.at_ms(leadership.since_wall_ms), now)
    who = f"{leadership.node} at {leadership.url} since {since}, epoch {leadership.epoch}"
    if facts.has_heartbeat:
        return ok("leader", who)
    return fail("leader", f"{who}: it is silent, and nobody took over", hint)


def _nodes(facts: Facts) -> Iterator[Verdict]:
    live = [peer for peer in facts.peers if peer.seen_ms_ago < SILENT_MS]
    silent = [peer for peer in facts.peers if peer.seen_ms_ago >= SILENT_MS]
    names = ", ".join(sorted(peer.node for peer in live)) or "none"
    if silent:
        gone = ", ".join(f"{peer.node} ({output.span(peer.seen_ms_ago / 1_000)})" for peer in silent)
        hint = "start them, or let them be: one that was silent for a day is forgotten"
        if facts.identity != facts.server.identity and not facts.wants_token_gap:
            hint = "they may run, and keep away from a store that went back in time: ask /readyz of each"
        yield warn("nodes", f"heard of: {names}; silent: {gone}", hint)
    elif len(live) == 1:
        yield warn("nodes", f"heard of: {names}", "start another one: now nobody could take over")
    else:
        yield (ok if live else warn)("nodes", f"heard of: {names}")
    leadership = facts.leadership
    if facts.has_heartbeat and any(
        peer.node == leadership.node and peer.process != leadership.process for peer in live
    ):
        text = f"two processes call themselves {leadership.node}: one leads, and another one told of itself"
        yield fail("names", text, "give each node a name of its own (setting node_name)")
    if len({peer.tokens for peer in live}) > 1:
        text = "the nodes have different static access tokens"
        yield fail("tokens", text, "give `tokens` and `tokens_file` the same content on each")
    elif live:
        yield ok("tokens", "the nodes have the same static access tokens")
    if len(versions := sorted({peer.version for peer in live})) > 1:
        yield warn("version", f"the nodes have {' and '.join(versions)}", "upgrade all: the leader last")


def _replicas(facts: Facts) -> Verdict:
    hidden = sum(not each.state for each in facts.replicas)
    named = [f"{each.name} ({each.state}, {each.sync_state})" for each in facts.replicas if each.state]
    text = ", ".join(named) or ("none" if not hidden else f"{hidden} that this role may not see")
    if not facts.server.has_standby:
        hint = "a failover of the database may lose the newest answers: set synchronous_standby_names"
        return warn("replicas", f"{text}; no commit waits for any", hint)
    if hidden:
        return ok("replicas", f"{text}; commits wait for a synchronous one")
    if not any(each.sync_state in {"sync", "quorum"} for each in facts.replicas):
        return fail("replicas", f"{text}; none is synchronous, so commits hang", "start the standby")
    return ok("replicas", f"{text}; commits wait for a synchronous one")


def _identity(facts: Facts) -> Verdict:
    times_so_far = "once" if facts.token_gaps == 1 else f"{facts.token_gaps} times"
    token_gaps = f", fencing tokens jumped {times_so_far} so far" if facts.token_gaps else ""
    text = f"timeline {facts.server.identity.timeline}{token_gaps}"
    if facts.wants_token_gap:
        return ok("timeline", f"{text}; the next leader lets fencing tokens jump")
    if facts.identity == facts.server.identity:
        return ok("timeline", f"{text}, as when the last record was written")
    changed = f"{text}: this is another server, timeline or copy than the last record was written on"
    if facts.leadership.is_held and facts.has_heartbeat:
        return warn("timeline", changed, "the leader has not met it yet")
    as_before = msgspec.structs.replace(facts.identity, timeline=facts.server.identity.timeline)
    if facts.has_standby and as_before == facts.server.identity:
        text = f"{text}: it was promoted since the last record, and that one waited for a synchronous standby"
        return ok("timeline", text, "the next leader goes on, and lets fencing tokens jump")
    hint = "if it was restored from a backup: holdfast store restored; else the next leader decides, by after_data_loss"
    return warn("timeline", changed, hint)


def _writes(facts: Facts) -> Verdict:
    if not facts.may_write:
        return warn("writes", "none was tried: this role may not write", "ask with the role of the nodes")
    if facts.refusal is not None:
        hint = "make room if its disk is full; the nodes go on by themselves"
        return fail("writes", f"the store refuses writes: {facts.refusal}", hint)
    return ok("writes", "one was tried, and taken back")


def _space(facts: Facts) -> Verdict:
    tail = f"{facts.tail_records} records ({output.size(facts.tail_bytes)}) are not archived yet"
    text = f"{output.size(facts.size_bytes)} in all; {tail}"
    if facts.tail_bytes > TAIL_BYTES_HIGH:
        return warn("space", text, "the archive does not keep up: look at the leader's log")
    return ok("space", text)
