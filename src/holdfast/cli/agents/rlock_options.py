"""The help of `rlock` and its variants, and their options that are also variables: imported when one is given."""

from __future__ import annotations

NAMES = ("--ca-file", "--allow-insecure-http")


def taken_out(arguments: list[str]) -> tuple[list[str], dict[str, str]]:
    """Return the other arguments, and the options as variables; a file that is not named is empty."""
    left: list[str] = []
    given: dict[str, str] = {}
    rest = iter(arguments)
    for argument in rest:
        name, equals, value = argument.partition("=")
        if name == "--ca-file":
            given["HOLDFAST_CA_FILE"] = value if equals else next(rest, "")
        elif argument == "--allow-insecure-http":
            given["HOLDFAST_ALLOW_INSECURE_HTTP"] = "1"
        else:
            left.append(argument)
    return left, given


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


def text(usage: str, *, timed: bool) -> str:
    return _HELP.format(usage=usage, ttl=_TTL_HELP if timed else "")
