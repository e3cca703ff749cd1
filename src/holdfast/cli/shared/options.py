"""Options that several commands share, and the types of their values."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from datetime import UTC, datetime, time, timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar

import click

from holdfast import durations
from holdfast.cli.shared import completion, output
from holdfast.cli.shared.completion import SERVER_OPTIONS
from holdfast.errors import SettingsError

if TYPE_CHECKING:
    from holdfast import Holdfast, Metadata

RETRY_SECONDS = 1.0
"""Short, because a person waits."""
ANSWER_SECONDS = 6.0
"""A node without a leader says so after 5 s."""
SECONDS_MAX, SECONDS_MAX_WORDS = 7_000 * 7 * 86_400, "7000w"
REMEMBER_SECONDS_MAX = 30 * 86_400
"""The limit of every server."""
OWNER_CHARS_MAX = 128
JSON = "holdfast.json"
"""The context's key for `--json`."""

URL_HELP = "The server, or its nodes with commas in between; else HOLDFAST_URL, else your client.toml."

F = TypeVar("F", bound=Callable[..., Any])


class Duration(click.ParamType[int]):
    """A time: 120 (seconds), 90s, 15m, 1h30m, 30d, 2w. Converted to whole seconds."""

    name = "time"

    def __init__(self, most: int = SECONDS_MAX, most_words: str = SECONDS_MAX_WORDS, *, least: int = 1) -> None:
        self._most, self._most_words, self._least = most, most_words, least

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        seconds = durations.seconds(str(value))
        if seconds is None and durations.milliseconds(str(value)):
            self.fail(f"{value!r:.100} is not a whole number of seconds; write {durations.EXAMPLES}", param, ctx)
        if seconds is None:
            self.fail(f"{value!r:.100} is not a time; write {durations.EXAMPLES}", param, ctx)
        if not self._least <= seconds <= self._most:
            # The message names only the bound that was passed: the server may allow less than the other one.
            short, long = f"short; {self._least}s is the least", f"long; {self._most_words} is the most"
            self.fail(f"{value!r:.100} is too {short if seconds < self._least else long}", param, ctx)
        return seconds


class Text(click.types.StringParamType):
    """A text in UTF-8: nothing else can be sent to a server."""

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> str:
        text = str(value)
        try:
            text.encode()
        except UnicodeEncodeError:
            self.fail(f"{text!r:.100} is not UTF-8; write it in UTF-8", param, ctx)
        return text


class Job(Text):
    """The name of a job."""

    name = "job"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> str:
        text = super().convert(value, param, ctx)
        if not text.strip():
            self.fail("a job needs a name, and this one is empty; is a variable not set?", param, ctx)
        return text


class PastTime(click.ParamType[str]):
    """A moment in the past, converted to RFC 3339: a time of day (the last one past), a date and time, or an age."""

    name = "when"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> str:
        from holdfast.cli.shared import output

        text, now = str(value).strip(), output.now()
        if re.fullmatch(r"([0-9.]+ *[a-z]+ *)+ago", text):
            text = re.sub(r"min(utes?)?\b", "m", text.removesuffix("ago")).replace(" ", "")
        try:
            # A number alone could be a year as well.
            if not text.isdecimal() and (ago_ms := durations.milliseconds(text)) is not None:
                at = now - timedelta(milliseconds=min(ago_ms, SECONDS_MAX * 1_000))
            elif re.fullmatch(r"[0-9]?[0-9](:[0-9]{2}){1,2}", text):
                at = output.last_past(time.fromisoformat("0" * (text[1] == ":") + text), now)
            else:
                at = datetime.fromisoformat(text)
            return at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        except (ValueError, OverflowError):
            self.fail(
                f"{value!r:.100} is not a time; write 02:14, 2026-11-15T02:14:00Z, or 2h for two hours ago", param, ctx
            )


class InOrder(click.Group):
    """A group whose help lists its commands in the order in which they were added."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's form
        return list(self.commands)


def takes_text(command: click.Command) -> None:
    """Restrict the texts of a command and its subcommands to UTF-8. Paths stay bytes."""
    for parameter in command.params:
        if parameter.type is click.STRING:
            parameter.type = Text()
    if isinstance(command, click.Group):
        for below in command.commands.values():
            takes_text(below)


class ServerOptions(TypedDict):
    url: str | None
    token_file: Path | None
    ca_file: Path | None
    allow_insecure_http: bool | None


def asks_server(command: F) -> F:
    """Add the options that say which server, with which token and trust; `server_options()` returns them."""
    file = click.Path(path_type=Path, dir_okay=False)
    option = partial(click.option, expose_value=False, callback=_record_server_option)
    url = option("--url", metavar="URL", help=URL_HELP)
    token_file = option(
        "--token-file",
        type=file,
        help="The file with your access token; else HOLDFAST_TOKEN, HOLDFAST_TOKEN_FILE, else your client.toml.",
    )
    ca_file = option(
        "--ca-file",
        metavar="FILE",
        type=file,
        help="Trust the certificates in FILE and no others; else HOLDFAST_CA_FILE, else your client.toml.",
    )
    insecure = option(
        "--allow-insecure-http",
        is_flag=True,
        default=None,
        help="Send your access token over plain HTTP to another machine; else HOLDFAST_ALLOW_INSECURE_HTTP=1.",
    )
    return url(token_file(ca_file(insecure(command))))


def _record_server_option(context: click.Context, parameter: click.Parameter, value: object) -> None:
    context.meta.setdefault(SERVER_OPTIONS, {})[parameter.name] = value


def server_options(context: click.Context | None = None) -> ServerOptions:
    """Return the values of the options of `asks_server`."""
    nothing = ServerOptions(url=None, token_file=None, ca_file=None, allow_insecure_http=None)
    found: ServerOptions = {**nothing, **(context or click.get_current_context()).meta.get(SERVER_OPTIONS, {})}
    return found


def as_json(command: F) -> F:
    """Add `--json`, which `main` obeys for refusals too; `wants_json()` tells whether it was given."""
    return click.option(
        "--json",
        is_flag=True,
        is_eager=True,
        expose_value=False,
        callback=_record_json,
        help="Print JSON instead of text.",
    )(command)


def _record_json(context: click.Context, _: click.Parameter, value: bool) -> None:  # noqa: FBT001 - click's form
    context.meta[JSON] = value


def wants_json() -> bool:
    return bool(click.get_current_context().meta.get(JSON))


def report(value: object, text: str) -> None:
    """Print the JSON value if that is wanted, else the line."""
    if wants_json():
        output.say_json(value)
    else:
        output.say(output.plain(text))


def names_job(command: F) -> F:
    """Add the argument JOB, completed with the names of claimed jobs."""
    return click.argument("job", type=Job(), shell_complete=completion.claimed_jobs)(command)


def names_jobs(command: F) -> F:
    """Add the arguments JOB..., completed with the names of claimed jobs."""
    names = completion.claimed_jobs
    return click.argument("jobs", nargs=-1, required=True, type=Job(), metavar="JOB...", shell_complete=names)(command)


def names_own_job(command: F) -> F:
    """Add the argument JOB, completed with what was claimed from here, and the options that say by whom."""
    job = click.argument("job", type=Job(), shell_complete=completion.own_jobs)
    lease = click.option(
        "--lease", metavar="ID", help="The lease id; else that of the `run` around it, else what `claim` kept."
    )
    owner = click.option(
        "--owner", metavar="NAME", help="Insist that NAME claimed it from here; else HOLDFAST_OWNER, else anybody."
    )
    return job(lease(owner(command)))


def attaches(command: F) -> F:
    text = click.option("--metadata", metavar="TEXT", help="Attach TEXT, or a JSON object, for everybody to see.")
    pairs = click.option(
        "-m", "--meta", "pairs", metavar="KEY=VALUE", multiple=True, help="Attach a field. Can be repeated."
    )
    return text(pairs(command))


def labels(help_text: str) -> Callable[[F], F]:
    return click.option("--label", "labels", metavar="KEY=VALUE", multiple=True, help=help_text)


def labels_of(pairs: tuple[str, ...]) -> dict[str, str] | None:
    """Return labels as a mapping. A key with two values is refused, as the server does."""
    if not pairs:
        return None
    fields = _fields(pairs, "--label")
    if other := [pair for pair in pairs if fields[(key := pair.partition("=")[0])] != pair[len(key) + 1 :]]:
        raise click.UsageError(f"--label {other[0].partition('=')[0]!r:.100} stands twice with different values")
    return fields


def metadata_of(text: str | None, pairs: tuple[str, ...]) -> Metadata:
    if text is not None and pairs:
        raise click.UsageError("--metadata and -m exclude each other; put all of it into one of them")
    return _fields(pairs, "-m") if pairs else text


def _fields(pairs: tuple[str, ...], option: str) -> dict[str, str]:
    fields = [pair.partition("=") for pair in pairs]
    if wrong := [key for key, equals, _ in fields if not equals or not key]:
        raise click.UsageError(f"{option} {wrong[0]!r:.100} has no value; write it as {option} KEY=VALUE")
    return {key: value for key, _, value in fields}


def from_environment(name: str) -> str | None:
    """Return a variable. Raises `SettingsError` if it is not UTF-8, without its value: it may be a secret."""
    text = os.environ.get(name)
    try:
        (text or "").encode()
    except UnicodeEncodeError:
        raise SettingsError(name, "the environment", "this is not UTF-8", "text in UTF-8") from None
    return text


def default_owner() -> str:
    """Return HOLDFAST_OWNER, else user@host:pid with the shell's pid.

    Two shells of one user are two owners: under one name, a wait for a job of the other would be refused as a deadlock.
    """
    if found := from_environment("HOLDFAST_OWNER"):
        return found
    import getpass
    import socket

    try:
        user = getpass.getuser()
    except (ImportError, KeyError, OSError):  # A container may run as a number without a name.
        user = f"uid-{os.getuid()}"
    shell = f":{os.getppid()}"
    # The names of the system may not be UTF-8.
    user_and_host = f"{user}@{socket.gethostname()}".encode(errors="replace").decode()
    return user_and_host[: OWNER_CHARS_MAX - len(shell)] + shell


def find_lease_id(url: str, job: str, named_lease: str | None, named_owner: str | None) -> str:
    """Return the lease id as named, else of the `holdfast run` around us, else as `holdfast claim` kept it here."""
    from holdfast.cli.shared import leases, with_command

    # In the environment of `holdfast run`, HOLDFAST_LEASE belongs to HOLDFAST_JOB alone.
    is_meant = os.environ.get("HOLDFAST_JOB", job) == job
    if given := named_lease or (from_environment("HOLDFAST_LEASE") if is_meant else None):
        return given
    for each in with_command.outer_jobs(os.environ):
        if each["job"] == job:
            return each["lease_id"]
    stored = leases.own().find(url, job)
    if not stored:
        locked = " what `rlock` has locked takes no note, and `rlock-heartbeat` renews it;" * (
            "GATEWAY_URL" in os.environ
        )
        raise click.UsageError(
            f"nobody claimed {job!r:.200} from here;{locked}"
            " claim it with `holdfast claim`, or put its lease id into HOLDFAST_LEASE"
        )
    wanted = named_owner or from_environment("HOLDFAST_OWNER")
    # Of several owners of one user, an unnamed one is the shell that claimed; no other may be guessed.
    who = wanted or (default_owner() if len(stored) > 1 else stored[0].owner)
    if lease_id := next((each.lease_id for each in stored if each.owner == who), None):
        return lease_id
    if not wanted:
        known = ", ".join(f"{each.owner!r:.200}" for each in stored)
        raise click.UsageError(
            f"several have claimed {job!r:.200} from here, the last one first: {known};"
            " say which of them you are with --owner NAME, or in HOLDFAST_OWNER"
        )
    raise click.UsageError(
        f"{job!r:.200} was claimed from here by {stored[0].owner!r:.200} and not by {wanted!r:.200}:"
        " leave it to that one. Only if both are you, name the owner who claimed it with --owner"
    )


def client() -> Holdfast:
    """Return a client of the server that the options and the environment name. Raises `SettingsError`."""
    from holdfast import Holdfast

    return Holdfast(answer_seconds=ANSWER_SECONDS, retry_seconds=RETRY_SECONDS, **server_options())
