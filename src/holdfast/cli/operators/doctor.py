"""`holdfast doctor`: look at a server, or at a data directory that no server uses, and say for each thing how it is.

It changes nothing. A check is a line: ok, warn or FAIL, and what to do next where there is something to do.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
from collections.abc import Iterator
from datetime import datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from holdfast.cli.operators.doctor_store import Finding, store_checks
from holdfast.cli.shared import output, times
from holdfast.cli.shared.options import as_json, asks_server, reach, wants_json
from holdfast.errors import ServerError, Unreachable
from holdfast.harmless import in_json
from holdfast.privatefiles import ROOT, how_to_be, user_named

if TYPE_CHECKING:
    from holdfast.cli.operators.probe import Answer, Probe

OK = 200
ANSWER_SECONDS = 6.0
"""A node that knows of no leader says so after 5 s."""
CLOCK_OFF_MS_MAX = 5_000
NOT_ITS_NAME = 421
DISK_FREE_BYTES_LOW = 1024**3
DISK_FREE_BYTES_MIN = 64 * 1024**2
COLOURS = {"ok": "green", "warn": "yellow", "FAIL": "red"}


@click.command(short_help="Look for trouble: server, store, access token, clocks.")
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
    nodes share, and at its nodes. It ends with 0 when nothing has failed, with 1 when something has, and with 69 when
    the server cannot be reached.
    """
    if dump:
        if data is None:
            raise click.UsageError("--dump needs the directory; write it as --dump --data DIR")
        return _dump(data)
    if data is not None and store is not None:
        raise click.UsageError("--data and --store exclude each other; look at one after the other")
    if store is not None:
        from holdfast.engine import stores

        checks = store_checks(stores.named(store, os.environ))
    elif data is not None:
        checks = _directory_checks(data)
    else:
        from holdfast.cli.operators.probe import Probe

        with Probe.find(reach()) as server:
            checks = list(_server_checks(server))
    if wants_json():
        output.say_json({"ok": not _failed(checks), "checks": checks})
    else:
        for check in checks:
            _show(check)
    if any(check.name == "reachable" for check in _failed(checks)):
        return output.UNREACHABLE
    return output.FAILED if _failed(checks) else output.OK


def _failed(checks: list[Finding]) -> list[Finding]:
    return [check for check in checks if check.status == "FAIL"]


def _show(check: Finding) -> None:
    word = click.style(f"{check.status:4}", fg=COLOURS[check.status], bold=check.status == "FAIL")
    following = f" -> {check.next}" if check.next else ""
    output.say(f"{word}  {check.name:11} {output.plain(check.text + following)}")


# A server.


def _server_checks(server: Probe) -> Iterator[Finding]:
    """Look at each address, then at the server behind them, by one that is ready."""
    with server.each() as nodes:
        met = [(node, *_meet(node)) for node in nodes]
        there = [(node, ready) for node, _, ready in met if ready is not None]
        well = [node for node, ready in there if ready.status == OK]
        for node, reachable, ready in met:
            # What one of several lacks is a warning while another serves.
            yield reachable if ready is not None or not there else _milder(reachable)
            if ready is not None:
                found = _ready(ready, f"{node.url}: " if len(nodes) > 1 else "")
                yield _milder(found) if well and found.status == "FAIL" else found
        if there:
            yield from _checks_by((well or [there[0][0]])[0])


def _milder(finding: Finding) -> Finding:
    return msgspec.structs.replace(finding, status="warn")


def _meet(node: Probe) -> tuple[Finding, Answer | None]:
    """Ask an address whether it is ready. None: nobody is there, or no Holdfast server."""
    began_ms = times.monotonic_ms()
    try:
        ready = node.ask("/readyz", ANSWER_SECONDS)
    except Unreachable as error:
        return _unreachable(node, error), None
    place = f"{node.url} (from {node.url_origin})"
    if not (_is_ready_of_ours(ready) or node.is_refusal(ready)):
        return _stranger(ready, place), None
    return Finding("reachable", "ok", f"{place}, {times.monotonic_ms() - began_ms} ms"), ready


def _unreachable(node: Probe, error: Unreachable) -> Finding:
    text = f"no answer from {error.url}: {error.problem} (the address is from {node.url_origin})"
    hint = error.hint or "start it with `holdfast serve`, or name another with HOLDFAST_URL"
    return Finding("reachable", "FAIL", text, hint)


def _checks_by(server: Probe) -> Iterator[Finding]:
    """Look at the store, the token, the clock and the version, by one node that is there."""
    try:
        health = server.ask("/health", ANSWER_SECONDS)
        yield _store(server, health)
        if isinstance(free := _field(health, "disk_free_bytes"), int):  # An older server does not say it.
            yield _disk(free)
        asked_ms = times.wall_ms(times.now())
        status = server.ask("/status", ANSWER_SECONDS)
        answered_ms = times.wall_ms(times.now())
        if server.lacks_leader(status):
            # Only the leader knows tokens and the time. What it would say is not known, and is not guessed.
            hint = "`holdfast nodes` shows what each node says; `holdfast doctor --store URL` looks at the store"
            yield Finding("leader", "FAIL", "no node leads right now", hint)
            return
        if status.status == NOT_ITS_NAME:
            # Health is told to everybody. All else is refused, so nothing more can be seen from here.
            yield Finding(
                "name", "FAIL", server.refusal(status), "add the name, or use one that it has, or its IP address"
            )
            return
        yield _token(server)
        yield from _clock_and_version(status, asked_ms, answered_ms)
    except Unreachable as error:
        yield _unreachable(server, error)


def _is_ready_of_ours(answer: Answer) -> bool:
    """Tell whether a Holdfast server says how it is. Others say it like this too, but without its request id."""
    is_ours = answer.headers.get("X-Request-Id", "").startswith("req_")
    return is_ours and isinstance(_field(answer, "status"), str)


def _stranger(answer: Answer, place: str) -> Finding:
    program = answer.headers.get("Server", "").strip()
    named = f" ({program:.60})" if program else ""
    if answer.status in {502, 503, 504}:
        text = f"a proxy{named} answers at {place} with {answer.status}, and the server behind it does not"
        return Finding("reachable", "FAIL", text, "look whether that server runs, and where the proxy sends requests")
    text = f"another program{named} answers at {place}, and no Holdfast server"
    return Finding("reachable", "FAIL", text, "check host and port: `holdfast serve` says its own when it starts")


def _ready(answer: Answer, place: str) -> Finding:
    if answer.status == OK:
        return Finding("ready", "ok", f"{place}it takes requests")
    text = f"{place}it answered {answer.status}: {_field(answer, 'details') or 'no details'}"
    return Finding("ready", "FAIL", text, "look at the server's log")


def _store(server: Probe, answer: Answer) -> Finding:
    details = _field(answer, "details") or "no details"
    is_shared = server.has_shared_store(answer)
    if answer.status == OK and _field(answer, "status") == "ok":
        if server.follows(details):
            return Finding("store", "ok", f"{_field(answer, 'storage')}; {details}")
        text = f"{_field(answer, 'storage')}, {_size(_field(answer, 'db_size_bytes'))}"
        if details == "ok":
            return Finding("store", "ok", text)
        # It serves, and something is not as it should be: its archivist fails.
        where = "the database, and at the server's log" if is_shared else "the server's disk and log"
        return Finding("store", "warn", f"{text}; {details}", f"look at {where}")
    text = f"it answered {answer.status}: {details}"
    hint = "look at the server's disk and log; `holdfast doctor --data DIR` once it is stopped"
    if is_shared:
        hint = "`holdfast doctor --store URL` looks at the database, and the server's log says more"
    return Finding("store", "FAIL", text, hint)


def _token(server: Probe) -> Finding:
    how = "put one of this server into HOLDFAST_TOKEN, or its file into HOLDFAST_TOKEN_FILE"
    if not server.has_token:
        return Finding("token", "FAIL", "there is no access token for this server", how)
    try:
        answer = server.ask("/locks?limit=1")
    except ServerError as error:
        return Finding("token", "FAIL", str(error), "try again")
    origin = f"(from {server.token_origin})"
    accepted = "access token accepted" if server.secret is None else f"accepted, it is {server.secret}"
    match answer.status:
        case 200:
            return Finding("token", "ok", f"{accepted} {origin}")
        case 401 | 429:
            return Finding("token", "FAIL", f"access token not accepted {origin}: {server.refusal(answer)}", how)
        case 403 if server.secret is not None:
            return Finding("token", "ok", f"{accepted} {origin}")
        case 403:
            # The server says what is missing: a scope, or another prefix.
            return Finding("token", "warn", f"accepted {origin}, but it may not look around: {server.refusal(answer)}")
        case _:
            return Finding("token", "FAIL", f"{origin} {server.refusal(answer)}", "look at the server's log")


def _clock_and_version(answer: Answer, asked_ms: int, answered_ms: int) -> Iterator[Finding]:
    from holdfast import __version__

    there_ms = _wall_of(answer)
    if there_ms is None:
        yield Finding(
            "clock", "warn", "the server did not say what time it has", "check that this is a Holdfast server"
        )
    else:
        off_ms = _apart_ms(there_ms, asked_ms, answered_ms)
        text = f"{abs(off_ms) / 1000:.1f} s {'ahead of' if off_ms > 0 else 'behind'} the server's"
        if abs(off_ms) <= CLOCK_OFF_MS_MAX:
            yield Finding("clock", "ok", text)
        else:
            hint = (
                "no lease depends on it, but times for people and the expiry of access tokens do: set the clocks right"
            )
            yield Finding("clock", "warn", text, hint)
    version = _field(answer, "version")
    if version is None:
        yield Finding(
            "version", "warn", "the server did not say which one it has", "check that this is a Holdfast server"
        )
    elif version == __version__:
        yield Finding("version", "ok", f"{version} on both sides")
    else:
        yield Finding(
            "version", "warn", f"the server has {version}, this is {__version__}", "use the same on both sides"
        )


def _apart_ms(there_ms: int, asked_ms: int, answered_ms: int) -> int:
    """Return how far our clock is ahead of the server's, at least: it may have answered at any time in between."""
    if there_ms < asked_ms:
        return asked_ms - there_ms
    return min(0, answered_ms - there_ms)


def _wall_of(answer: Answer) -> int | None:
    """Read the server's wall clock off its answer: `time` to the millisecond, else the Date header to the second."""
    try:
        return round(datetime.fromisoformat(str(_field(answer, "time"))).timestamp() * 1_000)
    except ValueError:
        pass
    try:
        return round(parsedate_to_datetime(answer.headers["Date"]).timestamp() * 1_000) + 500
    except (KeyError, ValueError):
        return None


def _field(answer: Answer, name: str) -> Any:  # noqa: ANN401 - JSON is whatever the server sent
    body = answer.json()
    return body.get(name) if isinstance(body, dict) else None


def _size(size_bytes: object) -> str:
    if not isinstance(size_bytes, int):
        return "of unknown size"
    return output.size(size_bytes)


# A data directory.


def _directory_checks(data: Path) -> list[Finding]:
    if data.is_file():
        return _backup_checks(data)
    if not data.is_dir():
        return [
            Finding("directory", "FAIL", f"{data} is not a directory", "name the one that the server was started with")
        ]
    if (owner := data.stat().st_uid) not in {os.geteuid(), ROOT}:
        text = f"it belongs to user {user_named(owner)}, and you are user {user_named(os.geteuid())}"
        return [
            Finding("directory", "ok", str(data)),
            Finding("access", "FAIL", f"nothing was looked at: {text}", how_to_be(owner)),
        ]
    return [
        Finding("directory", "ok", str(data)),
        _permissions(data),
        _disk(shutil.disk_usage(data).free),
        _journal(data),
        _key(data),
    ]


def _backup_checks(file: Path) -> list[Finding]:
    from holdfast.engine.restore import look_into
    from holdfast.journal.backup import MAGIC
    from holdfast.journal.base import JournalError, JournalTooNewError
    from holdfast.privatefiles import FOR_OTHERS

    with file.open("rb") as opened:
        if opened.read(len(MAGIC)) != MAGIC:
            text = f"{file} is a file, and no backup"
            return [Finding("directory", "FAIL", text, "name the directory that the server was started with")]
    checks = [Finding("access", "ok", "yours to read, and nobody else's")]
    if file.stat().st_mode & FOR_OTHERS:
        hint = f"it holds the server's key: chmod 600 '{file}'"
        checks = [Finding("access", "warn", f"other users may use {file}", hint)]
    try:
        found = look_into(file)
    except JournalTooNewError as error:
        return [*checks, Finding("backup", "FAIL", error.problem, ". ".join(error.ways) or None)]
    except JournalError as error:
        hint = "take another; nothing can be restored from this one"
        return [*checks, Finding("backup", "FAIL", error.problem, hint)]
    about = found.about
    made_at = times.at_ms(about.wall_ms)
    when = f"{times.clock(made_at, times.now())} ({times.ago(made_at, times.now())})"
    text = f"whole: {found.totals.records} records of history, as of record {about.seq} at {when}, by {about.version}"
    return [*checks, Finding("backup", "ok", f"{text}; {len(found.leases())} leases live in it")]


def _permissions(data: Path) -> Finding:
    from holdfast.journal.sqlite import check_files
    from holdfast.privatefiles import FOR_OTHERS, NotOursError, check_file
    from holdfast.server.access.secrets import KEY_FILE

    paths = [data, *(path for path in sorted(data.iterdir()) if path.is_file())]
    if closed := [path for path in paths if not os.access(path, os.R_OK | os.W_OK)]:
        hint = "look as the user the server runs as"
        if data.stat().st_uid == os.geteuid() != closed[0].stat().st_uid:
            hint = f"it is not yours, and the directory is: let root run: chown {os.geteuid()} '{closed[0]}'"
        return Finding("access", "FAIL", f"you may not read and write {closed[0]}", hint)
    # What a server would say to it. Whoever looks is its user; or the directory is root's.
    try:
        check_files(data)
        with contextlib.suppress(FileNotFoundError):
            check_file(data / KEY_FILE, (data / KEY_FILE).lstat())
    except NotOursError as error:
        return Finding("access", "FAIL", str(error), "no server starts on it as it is")
    if not data.stat().st_mode & FOR_OTHERS:
        return Finding("access", "ok", "yours to read and write, and nobody else's")
    if open_ones := [path for path in paths[1:] if path.stat().st_mode & FOR_OTHERS]:
        return Finding("access", "warn", f"other users may use {open_ones[0]}", f"chmod go= '{data}' '{data}'/*")
    return Finding("access", "ok", "yours to read and write; others may look into the directory, and use no file in it")


def _disk(free: int) -> Finding:
    text = f"{_size(free)} free"
    if free < DISK_FREE_BYTES_MIN:
        return Finding("disk", "FAIL", text, "free some space: a full disk stops new claims")
    if free < DISK_FREE_BYTES_LOW:
        return Finding("disk", "warn", text, "free some space before it is full")
    return Finding("disk", "ok", text)


def _journal(data: Path) -> Finding:
    from holdfast.journal.base import JournalError, JournalLockedError
    from holdfast.journal.inspect import inspect
    from holdfast.server.access.secrets import KEY_FILE

    try:
        found = inspect(data, witnesses=(KEY_FILE,))
    except JournalLockedError as error:
        hint = ". ".join(error.ways) or "`holdfast doctor` without --data asks the server"
        return Finding("journal", "warn", error.problem, hint)
    except JournalError as error:
        return Finding("journal", "FAIL", error.problem, ". ".join(error.ways) or None)
    if found.problems:
        more = f" (and {len(found.problems) - 1} more)" if len(found.problems) > 1 else ""
        return Finding("journal", "FAIL", f"{found.problems[0]}{more}", ". ".join(found.ways) or None)
    since = found.last_seq - found.archived_upto
    text = f"{found.records} records, all whole; the last is {found.last_seq}, and {since} are not archived yet"
    if (restored := found.restored) is not None:
        at, of = (times.at_ms(ms) for ms in (restored.wall_ms, restored.backup_wall_ms))
        now = times.now()
        text += f"; restored {times.ago(at, now)} from a backup of {times.clock(of, now)}"
        text += f", with fencing tokens from {restored.last_token + 1} on"
    return Finding("journal", "ok", text)


def _key(data: Path) -> Finding:
    from holdfast.server.access.secrets import KEY_BYTES, KEY_FILE

    file = data / KEY_FILE
    if not file.is_file():
        hint = "restore it from a backup, or let the next start make a new one: session secrets of before will not work"
        return Finding("key", "warn", f"{file} is not there", hint)
    if file.stat().st_size != KEY_BYTES:
        return Finding("key", "FAIL", f"{file} is not a key of {KEY_BYTES} bytes", "restore it from a backup")
    return Finding("key", "ok", str(file))


def _dump(data: Path) -> int:
    from holdfast.journal.base import JournalError
    from holdfast.journal.inspect import dump

    try:
        for record in dump(data):
            # Not by `say_json_line`, which hands each line over at once: there may be millions.
            sys.stdout.buffer.write(in_json(msgspec.json.encode(record).decode()).encode() + b"\n")
    except JournalError as error:
        output.complain(str(error))
        return output.FAILED
    return output.OK
