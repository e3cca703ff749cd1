"""Options that several commands share, and the types of what stands on a command line."""

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
from holdfast.cli.shared import completion
from holdfast.cli.shared.completion import REACH
from holdfast.errors import SettingsError

if TYPE_CHECKING:
    from holdfast import Holdfast, Metadata

RETRY_SECONDS = 1.0
"""Somebody sits in front of it: a server that is not there is said soon."""
ANSWER_SECONDS = 6.0
"""And so is one that hangs. It is asked twice before that. A node that knows of no leader says so after 5 s."""
SECONDS_MAX, SECONDS_MAX_WORDS = 7_000 * 7 * 86_400, "7000w"
REMEMBER_SECONDS_MAX = 30 * 86_400
"""Finished work is remembered for so long at most, on every server."""
OWNER_CHARS_MAX = 128
JSON = "holdfast.json"
"""Where the context says that `--json` was given."""

URL_HELP = "The server, or its nodes with commas in between; else HOLDFAST_URL, else your client.toml."

F = TypeVar("F", bound=Callable[..., Any])


class Duration(click.ParamType[int]):
    """A time: 120 (seconds), 90s, 15m, 1h30m, 30d, 2w. In whole seconds afterwards."""

    name = "time"

    def __init__(self, most: int = SECONDS_MAX, most_words: str = SECONDS_MAX_WORDS, *, least: int = 1) -> None:
        """Take the longest that is allowed, in seconds and as it is written, and the shortest."""
        self._most = most
        self._most_words = most_words
        self._least = least

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        seconds = durations.seconds(str(value))
        if seconds is None and durations.milliseconds(str(value)):
            self.fail(f"{value!r:.100} is not a whole number of seconds; write {durations.EXAMPLES}", param, ctx)
        if seconds is None:
            self.fail(f"{value!r:.100} is not a time; write {durations.EXAMPLES}", param, ctx)
        if not self._least <= seconds <= self._most:
            # Only what was passed: the server may allow less at the other end, and says so itself.
            short, long = f"short; {self._least}s is the least", f"long; {self._most_words} is the most"
            self.fail(f"{value!r:.100} is too {short if seconds < self._least else long}", param, ctx)
        return seconds


class Text(click.types.StringParamType):
    """A text. What is not UTF-8 cannot be sent to a server, and is no usual text either."""

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> str:
        text = str(value)
        try:
            text.encode()
        except UnicodeEncodeError:
            self.fail(f"{text!r:.100} is not UTF-8; write it in UTF-8", param, ctx)
        return text


class Job(Text):
    """The name of a job. An empty one is a variable that was not set."""

    name = "job"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> str:
        text = super().convert(value, param, ctx)
        if not text.strip():
            self.fail("a job needs a name, and this one is empty; is a variable not set?", param, ctx)
        return text


class Whole(click.ParamType[int]):
    """A whole number within bounds."""

    name = "number"

    def __init__(self, least: int, most: int | None = None) -> None:
        self._least = least
        self._most = most

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            number = int(str(value))
        except ValueError:
            number = self._least - 1
        if number < self._least or (self._most is not None and number > self._most):
            bounds = f"of at least {self._least}" if self._most is None else f"from {self._least} to {self._most}"
            self.fail(f"{value!r:.100} is not a whole number {bounds}", param, ctx)
        return number


class FencingToken(Whole):
    """A fencing token."""

    name = "fencing token"

    def __init__(self) -> None:
        super().__init__(0)

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if str(value).startswith("hold"):
            self.fail("this is an access token or a secret; a fencing token is a number", param, ctx)
        if not str(value).isdecimal():
            hint = "it is a whole number, as `holdfast claim` and `holdfast owner` show it"
            self.fail(f"{value!r:.100} is no fencing token; {hint}", param, ctx)
        return super().convert(value, param, ctx)


class PointInTime(click.ParamType[str]):
    """A point in time: RFC 3339, local time without a zone, or how long ago. RFC 3339 afterwards."""

    name = "when"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> str:
        from holdfast.cli.shared import times

        text = str(value)
        # A number alone could be a year as well.
        if not text.isdecimal() and (ago_ms := durations.milliseconds(text)) is not None:
            return _written(times.now() - timedelta(milliseconds=min(ago_ms, SECONDS_MAX * 1_000)))
        if re.fullmatch(r"[0-9]{2}:[0-9]{2}(:[0-9]{2})?", text):
            text = f"{times.now().astimezone().date()}T{text}"
        try:
            return _written(datetime.fromisoformat(text).astimezone())
        except (ValueError, OverflowError):
            self.fail(
                f"{value!r:.100} is not a time; write 02:14, 2026-11-15T02:14:00Z, or 2h for two hours ago", param, ctx
            )


class PastMoment(PointInTime):
    """A moment that is over: as a point in time, but a time of day alone is the last one past."""

    name = "moment"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> str:
        from holdfast.cli.shared import times

        text = str(value).strip()
        if re.fullmatch(r"([01]?[0-9]|2[0-3]):[0-5][0-9](:[0-5][0-9])?", text):
            clock = text if text[2] == ":" else f"0{text}"
            return _written(times.last_past(time.fromisoformat(clock), times.now()))
        ago = re.fullmatch(r"([0-9.]+ *[a-z]+ *)+ago", text)
        if ago:
            text = re.sub(r"min(utes?)?\b", "m", text.removesuffix("ago")).replace(" ", "")
        return super().convert(text, param, ctx)


class InOrder(click.Group):
    """A group whose help shows its commands in the order in which they were added, as the reference does."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's form
        return list(self.commands)


def _written(at: datetime) -> str:
    return at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def takes_text(command: click.Command) -> None:
    """Let a command, and all below it, take no text but UTF-8 where it takes any. Paths are bytes, and stay so."""
    for parameter in command.params:
        if parameter.type is click.STRING:
            parameter.type = Text()
    if isinstance(command, click.Group):
        for below in command.commands.values():
            takes_text(below)


class Reach(TypedDict):
    """How a server is reached, as a client takes it."""

    url: str | None
    token_file: Path | None
    ca_file: Path | None
    allow_insecure_http: bool | None


def asks_server(command: F) -> F:
    """Add the options that say which server, with which token, and how to trust it; `reach()` returns them."""
    file = click.Path(path_type=Path, dir_okay=False)
    noted = partial(click.option, expose_value=False, callback=_note_reach)
    url = noted("--url", metavar="URL", help=URL_HELP)
    token_file = noted(
        "--token-file",
        type=file,
        help="The file with your access token; else HOLDFAST_TOKEN, HOLDFAST_TOKEN_FILE, else your client.toml.",
    )
    ca_file = noted(
        "--ca-file",
        metavar="FILE",
        type=file,
        help="Trust the certificates in FILE and no others; else HOLDFAST_CA_FILE, else your client.toml.",
    )
    insecure = noted(
        "--allow-insecure-http",
        is_flag=True,
        default=None,
        help="Send your access token over plain HTTP to another machine; else HOLDFAST_ALLOW_INSECURE_HTTP=1.",
    )
    return url(token_file(ca_file(insecure(command))))


def _note_reach(context: click.Context, parameter: click.Parameter, value: object) -> None:
    context.meta.setdefault(REACH, {})[parameter.name] = value


def reach(context: click.Context | None = None) -> Reach:
    """Return what the options say of how to reach the server."""
    noted: dict[str, Any] = (context or click.get_current_context()).meta.get(REACH, {})
    return {
        "url": noted.get("url"),
        "token_file": noted.get("token_file"),
        "ca_file": noted.get("ca_file"),
        "allow_insecure_http": noted.get("allow_insecure_http"),
    }


def as_json(command: F) -> F:
    """Add `--json`; `wants_json()` tells whether it was given. `main` prints refusals as JSON too then."""
    return click.option(
        "--json",
        is_flag=True,
        is_eager=True,
        expose_value=False,
        callback=_note_json,
        help="Print JSON instead of text.",
    )(command)


def _note_json(context: click.Context, _: click.Parameter, value: bool) -> None:  # noqa: FBT001 - click's form
    context.meta[JSON] = value


def wants_json() -> bool:
    """Tell whether `--json` was given."""
    return bool(click.get_current_context().meta.get(JSON))


def names_job(command: F) -> F:
    """Add the argument JOB, completed with the names of claimed jobs."""
    return click.argument("job", type=Job(), shell_complete=completion.claimed_jobs)(command)


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
    """Add the options for metadata."""
    text = click.option("--metadata", metavar="TEXT", help="Attach TEXT, or a JSON object, for everybody to see.")
    pairs = click.option(
        "-m", "--meta", "pairs", metavar="KEY=VALUE", multiple=True, help="Attach a field. Can be repeated."
    )
    return text(pairs(command))


def labels(help_text: str) -> Callable[[F], F]:
    """Add the option for labels."""
    return click.option("--label", "labels", metavar="KEY=VALUE", multiple=True, help=help_text)


def labels_of(pairs: tuple[str, ...]) -> dict[str, str] | None:
    """Put labels together. A key with two values is refused, as the server does: neither is passed over in silence."""
    if not pairs:
        return None
    fields = _fields(pairs, "--label")
    if other := [pair for pair in pairs if fields[(key := pair.partition("=")[0])] != pair[len(key) + 1 :]]:
        raise click.UsageError(f"--label {other[0].partition('=')[0]!r:.100} stands twice with different values")
    return fields


def metadata_of(text: str | None, pairs: tuple[str, ...]) -> Metadata:
    """Put metadata together."""
    if text is not None and pairs:
        raise click.UsageError("--metadata and -m exclude each other; put all of it into one of them")
    return _fields(pairs, "-m") if pairs else text


def _fields(pairs: tuple[str, ...], option: str) -> dict[str, str]:
    fields = [pair.partition("=") for pair in pairs]
    if wrong := [key for key, equals, _ in fields if not equals or not key]:
        raise click.UsageError(f"{option} {wrong[0]!r:.100} has no value; write it as {option} KEY=VALUE")
    return {key: value for key, _, value in fields}


def from_environment(name: str) -> str | None:
    """Return what the environment says. Raises `SettingsError` for what is not UTF-8; it may be a secret."""
    text = os.environ.get(name)
    try:
        (text or "").encode()
    except UnicodeEncodeError:
        raise SettingsError(name, "the environment", "this is not UTF-8", "text in UTF-8") from None
    return text


def default_owner() -> str:
    """Return in whose name to claim where nobody is named: HOLDFAST_OWNER, else user@host:pid, of the shell.

    The shell's number keeps two shells of one user apart: of one name they would be one holder, and one that waits for
    what the other has would be refused as waiting for itself.
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
    # Both come from the system, which may have named them in other bytes than UTF-8.
    place = f"{user}@{socket.gethostname()}".encode(errors="replace").decode()
    return place[: OWNER_CHARS_MAX - len(shell)] + shell


def find_lease_id(url: str, job: str, named_lease: str | None, named_owner: str | None) -> str:
    """Return the lease id to show: as named, else as `holdfast run` told it, else what `holdfast claim` kept here."""
    from holdfast.cli.shared import leases, with_command

    # In the environment of `holdfast run` it is that of HOLDFAST_JOB, and of no other job.
    is_meant = os.environ.get("HOLDFAST_JOB", job) == job
    if given := named_lease or (from_environment("HOLDFAST_LEASE") if is_meant else None):
        return given
    if given := with_command.lease_ids(os.environ).get(job):
        return given
    kept = leases.own().find(url, job)
    if kept is None:
        locked = " what `rlock` has locked takes no note, and `rlock-heartbeat` renews it;" * (
            "GATEWAY_URL" in os.environ
        )
        raise click.UsageError(
            f"nobody claimed {job!r:.200} from here;{locked}"
            " claim it with `holdfast claim`, or put its lease id into HOLDFAST_LEASE"
        )
    wanted = named_owner or from_environment("HOLDFAST_OWNER")
    if not wanted and kept.former:
        # Several owners of one user: what this shell claimed is its own, and of the others none may be guessed.
        wanted = default_owner()
        if kept.lease_id_of(wanted) is None:
            known = ", ".join(f"{name!r:.200}" for name in (kept.owner, *(each.owner for each in kept.former)))
            raise click.UsageError(
                f"several have claimed {job!r:.200} from here, the last one first: {known};"
                " say which of them you are with --owner NAME, or in HOLDFAST_OWNER"
            )
    if not wanted:
        return kept.lease_id
    lease_id = kept.lease_id_of(wanted)
    if lease_id is None:
        raise click.UsageError(
            f"{job!r:.200} was claimed from here by {kept.owner!r:.200} and not by {wanted!r:.200}:"
            " leave it to that one. Only if both are you, name the owner who claimed it with --owner"
        )
    return lease_id


def client() -> Holdfast:
    """Make a client of the server that the options and the environment name. Raises `SettingsError`."""
    from holdfast import Holdfast

    return Holdfast(answer_seconds=ANSWER_SECONDS, retry_seconds=RETRY_SECONDS, **reach())
