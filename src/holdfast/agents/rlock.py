"""`rlock`, `runlock`, `rlock-heartbeat`: one request to the gateway, one line of JSON, one exit code.

They report success only if the gateway did. They import little, and rarely needed modules late, because a shell script
may start them a thousand times. The secret comes from the environment and is sent in the body, never on a command line.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping

from holdfast.client import minihttp
from holdfast.client.minihttp import SECONDS_MAX, Address, UnreachableError, addresses

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

OK, NOT_ALLOWED, BAD_REQUEST, UNREACHABLE, OTHER, USAGE = 0, 3, 4, 6, 7, 9
# The exit code of each HTTP status; any other is `OTHER`.
EXIT = {200: OK, 409: 1, 404: 2, 403: NOT_ALLOWED, 400: BAD_REQUEST, 503: 5, 502: 10, 504: 11, 500: 12}
# Holdfast's own: too long, not a name of the server, a wrong secret after too many others. Nothing was changed.
EXIT |= {413: BAD_REQUEST, 421: BAD_REQUEST, 429: NOT_ALLOWED}

_ANOTHER = "another program answers there; look at the address in GATEWAY_URL"

_HELP = """\
{usage}

  URI             what to lock, as in github://acme/app/issues/42{ttl}
  --ca-file FILE  trust the certificates in FILE and no others; else HOLDFAST_CA_FILE
  --allow-insecure-http  ask the server of HOLDFAST_URL over plain HTTP, as HOLDFAST_ALLOW_INSECURE_HTTP=1 does

Environment: GATEWAY_URL, SHUTDOWN_SECRET, HOLDFAST_CA_FILE. Without GATEWAY_URL the server of HOLDFAST_URL or of your
client.toml is asked; HOLDFAST_RLOCK_STANDALONE=1 then means that there is no server and no need of one.
An address may be several, with commas in between: those of the nodes of one server.
Prints one line of JSON. Exit codes: 0 ok, 1 held by another, 2 not found, 3 not allowed, 4 bad request, 5 unavailable,
6 unreachable, 7 other, 9 usage, 10-12 gateway errors.
"""
_TTL_HELP = (
    "\n  --ttl TIME      for how long, as 120 (seconds), 90s, 15m, 1h30m; the server's resourceLockTimeout if absent"
)

Outcome = tuple[int, dict[str, object]]  # The exit code and the output.


class UsageError(Exception):
    """Invalid command line."""


def rlock() -> NoReturn:
    # Skip the interpreter's cleanup, which could wait for a hanging name lookup. Everything is written.
    os._exit(main("rlock", "acquire", timed=True))


def runlock() -> NoReturn:
    os._exit(main("runlock", "release", timed=False))


def heartbeat() -> NoReturn:
    os._exit(main("rlock-heartbeat", "heartbeat", timed=True))


def main(command: str, verb: str, *, timed: bool) -> int:
    usage = f"usage: {command} URI [--ttl TIME]" if timed else f"usage: {command} URI"
    arguments = sys.argv[1:]
    try:
        if arguments[:1] in (["-h"], ["--help"]):
            _write(2, _HELP.format(usage=usage, ttl=_TTL_HELP if timed else ""))
            # Not 0: a script whose key is "-h" must not assume that it has a lock.
            raise UsageError
        code, outcome = run(arguments, verb, os.environ, timed=timed)
    except UsageError as error:
        code, outcome = USAGE, _failed(f"{usage}: {error}" if error.args else usage)
    except UnreachableError as error:
        code, outcome = UNREACHABLE, _failed(str(error))
    except KeyboardInterrupt:
        code, outcome = 130, _failed("interrupted: it may or may not have been done")
    except Exception as error:  # noqa: BLE001 - Python's own exit code would say "held by another"
        code, outcome = OTHER, _failed(f"unexpected, it may or may not have been done: {type(error).__name__}: {error}")
    _write(1, _line(outcome) + "\n")
    return code


def _line(outcome: dict[str, object]) -> str:
    line = json.dumps(outcome, ensure_ascii=False, separators=(",", ":"))
    if line.isprintable():
        return line
    from holdfast.sanitize import in_json

    return in_json(line)


def _write(descriptor: int, text: str) -> None:
    data = text.encode()
    try:
        while data:
            data = data[os.write(descriptor, data) :]
    except OSError:
        return  # Nobody reads the line; the exit code still reports the result.


def run(
    arguments: list[str], verb: str, environment: Mapping[str, str], *, timed: bool, seconds: float = SECONDS_MAX
) -> Outcome:
    """Run one command. Raises `UsageError` and `UnreachableError`."""
    arguments, environment = _with_options(arguments, environment)
    if not environment.get("GATEWAY_URL") and environment.get("HOLDFAST_RLOCK_STANDALONE") == "1":
        return OK, {"ok": True}
    addresses = _find(environment)
    body = _read_arguments(arguments, timed=timed)
    secret = environment.get("SHUTDOWN_SECRET")
    if not secret:
        return BAD_REQUEST, _failed("missing secret")
    return ask(addresses, verb, {"secret": secret, **body}, seconds)


def _failed(text: str) -> dict[str, object]:
    return {"ok": False, "error": text}


def _with_options(arguments: list[str], environment: Mapping[str, str]) -> tuple[list[str], Mapping[str, str]]:
    """Move options that are also variables into the environment."""
    left: list[str] = []
    given: dict[str, str] = {}
    rest = iter(arguments)
    for argument in rest:
        name, equals, value = argument.partition("=")
        if name == "--ca-file":
            given["HOLDFAST_CA_FILE"] = value if equals else next(rest, "")
            if not given["HOLDFAST_CA_FILE"]:
                raise UsageError("--ca-file needs a file")
        elif argument == "--allow-insecure-http":
            given["HOLDFAST_ALLOW_INSECURE_HTTP"] = "1"
        else:
            left.append(argument)
    return left, {**environment, **given} if given else environment


def _read_arguments(arguments: list[str], *, timed: bool) -> dict[str, object]:
    """Parse the key and then options; other arguments are ignored."""
    if not arguments or not arguments[0] or arguments[0].startswith("-"):
        raise UsageError  # No URI begins with a dash.
    body: dict[str, object] = {"resourceKey": arguments[0]}
    rest = iter(arguments[1:])
    for argument in rest:
        name, equals, value = argument.partition("=")
        if name == "--ttl" and timed:
            from holdfast.durations import milliseconds

            ttl_ms = milliseconds(value if equals else next(rest, ""))
            if not ttl_ms:
                raise UsageError("--ttl needs a time above 0, as 120, 90s, 15m, 1h30m or 500ms")
            body["ttl"] = ttl_ms / 1_000
        elif argument.startswith("-"):
            raise UsageError(f"unknown option {name}")
    return body


def _find(environment: Mapping[str, str]) -> list[Address]:
    ca_file = environment.get("HOLDFAST_CA_FILE", "")
    allowed = environment.get("HOLDFAST_ALLOW_INSECURE_HTTP", "").lower() in {"1", "true", "yes", "on"}
    named = environment.get("HOLDFAST_URL", "")
    if url := environment.get("GATEWAY_URL"):
        # The run's starter chose the network to the gateway; within one machine it is often plain HTTP.
        gateways = addresses(url, "GATEWAY_URL", ca_file)
        if "," in named:
            other_nodes = minihttp.others(gateways, addresses(named, "HOLDFAST_URL", ca_file))
            gateways += _guarded([each for each in other_nodes if allowed or each.is_private], allowed=True)
        return gateways
    if named:
        return _guarded(addresses(named, "HOLDFAST_URL", ca_file), allowed=allowed)
    try:
        stored = minihttp.StoredConfig(environment)
    except ValueError as error:
        raise UnreachableError(str(error)) from None
    if stored.url:
        named_there = addresses(stored.url, stored.file, ca_file or stored.ca_file)
        return _guarded(named_there, allowed=allowed or stored.allow_insecure_http)
    raise UnreachableError("no gateway: set GATEWAY_URL, or HOLDFAST_RLOCK_STANDALONE=1 if nothing else runs")


def _guarded(found: list[Address], *, allowed: bool) -> list[Address]:
    for address in [each for each in found if not each.is_private]:
        if not allowed:
            meant = "set HOLDFAST_ALLOW_INSECURE_HTTP=1 or GATEWAY_URL if that is meant"
            raise UnreachableError(f"the secret would travel unencrypted: use https://, or {meant}")
        _write(2, f"the secret travels to {address.authority} unencrypted, as was allowed\n")
    return found


def ask(gateways: list[Address], verb: str, body: dict[str, object], seconds: float = SECONDS_MAX) -> Outcome:
    """Send one request, and retry it if the connection broke.

    The retry is safe: acquire and heartbeat are idempotent for a run, and a release carries an idempotency key.
    """
    headers = f"Idempotency-Key: {minihttp.fresh_key()}\r\n" if verb == "release" else ""
    content = json.dumps(body).encode()
    status, answer, was_lost = minihttp.ask(gateways, "POST", f"/locks/{verb}", headers, content, seconds=seconds)
    code, outcome = _outcome_of(status, answer)
    if was_lost and verb == "release" and code in {1, 2}:
        # A gateway without idempotency keys cannot tell whether the first try took effect, and neither can we.
        outcome["lost"] = "the answer to a first try was lost: it may be that one which gave the lock back"
    return code, outcome


def _outcome_of(status: int, content: bytes) -> Outcome:
    """Interpret a response. A 200 without the gateway's `ok` is not a success."""
    code = EXIT.get(status, OTHER)
    try:
        outcome = json.loads(content)
    except (ValueError, RecursionError):
        outcome = None
    if not isinstance(outcome, dict):
        return code or OTHER, _failed(f"HTTP {status}, and not from a gateway: {_ANOTHER}")
    if code == OK and outcome.get("ok") is not True:
        return OTHER, _failed(f"HTTP 200 without ok, and not from a gateway: {_ANOTHER}")
    return code, outcome if "ok" in outcome else {"ok": False, **outcome}
