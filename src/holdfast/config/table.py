"""The table of settings: each is one field of `Settings`, and one row of `TABLE` is read off it."""

from __future__ import annotations

import os
import re
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec

from holdfast import durations
from holdfast.config.addresses import (
    parse_address,
    parse_hosts,
    parse_networks,
    parse_node,
    parse_schema,
    parse_store,
    parse_url,
)
from holdfast.errors import SettingsError

PREFIX = "HOLDFAST_"

NUMBER_MAX = 1_000_000_000

_SWITCH = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}
_NUMBER = re.compile(r"-?[0-9]+(_[0-9]+)*")


class About(msgspec.Struct, frozen=True):
    """What a field of `Settings` cannot say by its type and default."""

    help: str
    unit: str = ""
    minimum: int = 0
    maximum: int = NUMBER_MAX
    secret: bool = False
    default_text: str = ""
    named_file_only: bool = False
    """Whether only a file that somebody named may set it, and not one that lay in the working directory.

    Addresses, paths and other texts decide who gets in, or whose words are read: they are such files' alone. Numbers,
    switches and choices are not, unless this says so.
    """
    also: str = ""
    """A second name in the file and on the command line: what another program calls it."""
    read: Callable[[str], object] | None = None


class Setting(About, frozen=True, kw_only=True):
    name: str
    kind: Literal["number", "switch", "choice", "path", "text"]
    default: object
    choices: tuple[str, ...]

    @property
    def variable(self) -> str:
        return PREFIX + self.name.upper()

    @property
    def allowed(self) -> str:
        match self.kind:
            case "number":
                return f"a whole number of {self.unit}, {self.minimum} to {self.maximum}"
            case "switch":
                return "true or false"
            case "choice":
                return ", ".join(self.choices[:-1]) + f" or {self.choices[-1]}"
            case "path":
                return "a path"
            case "text":
                return self.unit or "text"

    def from_text(self, text: str, origin: str, base: Path, home: Path) -> object:
        match self.kind:
            case "number" if _NUMBER.fullmatch(text.strip()):
                return self._checked(int(text), origin)
            case "number" if self.unit == "seconds" and (seconds := durations.seconds(text)) is not None:
                return self._checked(seconds, origin)
            case "switch" if text.strip().lower() in _SWITCH:
                return _SWITCH[text.strip().lower()]
            case "number" | "switch":
                raise self._wrong(text, origin)
            case "path":
                return self._path(text, origin, base, home)
            case _:
                return self._checked(text, origin)

    def from_toml(self, value: object, origin: str, base: Path, home: Path) -> object:
        """Read a value of the file, where 60 and "60" are two different things."""
        match self.kind, value:
            case ("switch", bool()):
                return value
            case ("number", int()) if not isinstance(value, bool):
                return self._checked(value, origin)
            case ("number", str()) if self.unit == "seconds" and (seconds := _seconds_of(value)) is not None:
                return self._checked(seconds, origin)
            case ("path", str()):
                return self._path(value, origin, base, home)
            case ("choice" | "text", str()):
                return self._checked(value, origin)
            case _:
                raise self._wrong(value, origin)

    def _path(self, text: str, origin: str, base: Path, home: Path) -> Path:
        if not text or "\0" in text:
            raise self._wrong(text, origin)
        return base / (home / text[2:] if text.startswith("~/") else text)

    def _checked(self, value: object, origin: str) -> object:
        fits = True
        if isinstance(value, int):
            fits = self.minimum <= value <= self.maximum
        elif self.choices:
            fits = value in self.choices
        elif self.read is not None:
            try:
                self.read(str(value))
            except ValueError as error:
                raise SettingsError(self.name, origin, str(error), self.allowed) from None
        if not fits:
            raise self._wrong(value, origin)
        return value

    def _wrong(self, value: object, origin: str) -> SettingsError:
        shown = "this value" if self.secret else f"{_as_written(value):.200}"
        return SettingsError(self.name, origin, f"{shown} cannot be used", self.allowed)


def _seconds_of(text: str) -> int | None:
    return None if text.strip().isdecimal() else durations.seconds(text)


def _as_written(value: object) -> str:
    if isinstance(value, str):
        return repr(value)
    return msgspec.json.encode(value, enc_hook=str).decode()


def _default_data() -> Path:
    return default_data(os.environ)


_ABOUT: list[About] = []


def _about(
    default: Any,  # noqa: ANN401 - of the field's type
    text: str,
    unit: str = "",
    minimum: int = 0,
    maximum: int = NUMBER_MAX,
    **more: Any,  # noqa: ANN401 - the other fields of `About`
) -> Any:  # noqa: ANN401 - the default
    """Note what a field of `Settings` means, in the order of the fields, and return its default."""
    _ABOUT.append(About(text, unit, minimum, maximum, **more))
    return default


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Everything about a server that can be set. The order is the order of the docs."""

    listen: str = _about(
        "127.0.0.1:7420",
        "The address the server listens on; port 0 takes any free one.",
        unit="host:port or [IPv6]:port",
        read=parse_address,
    )
    public_url: str = _about(
        "",
        "The address by which clients on other machines and in containers reach the server, if they need another"
        " one. Sessions are told it, so `holdfast session exec` hands it to its command. Its host is one of"
        " `allowed_hosts`.",
        unit="https://host:port, with a path if a proxy wants one",
        read=parse_url,
    )
    allowed_hosts: str = _about(
        "",
        "The names that requests may give in `Host`, beside IP addresses, `localhost`, the machine's own name and"
        " the hosts of `listen` and `public_url`; `.example.org` is that name and all below it, `*` is any. Others"
        " are answered 421.",
        unit="names of hosts, separated by commas",
        read=parse_hosts,
    )
    trusted_proxies: str = _about(
        "",
        "The proxies whose `X-Forwarded-For` is believed, which says who asks, and `X-Forwarded-Proto`, which says"
        " whether the page's cookie is for https alone.",
        unit="IP addresses and networks, separated by commas",
        read=parse_networks,
    )
    data: Path = _about(
        msgspec.field(default_factory=_default_data),
        "The directory that keeps the journal; only one server at a time can use it.",
        default_text="`$XDG_DATA_HOME/holdfast`, else `~/.local/share/holdfast`",
    )
    store: str = _about(
        "",
        "The PostgreSQL database that keeps the journal in place of `data`, for several nodes: one of them leads,"
        " and another takes over. Several hosts, separated by commas, are tried in turn. Keep the password in"
        " `PGPASSFILE` or `PGPASSWORD`.",
        unit="postgresql://user@host:port/database",
        secret=True,
        read=parse_store,
    )
    advertise: str = _about(
        "",
        "With `store`: where the other nodes reach this one.",
        unit="https://host:port",
        default_text="the address of `listen`, unless that is one for all, as 0.0.0.0",
        read=parse_url,
    )
    node_name: str = _about(
        "",
        "With `store`: the name of this node, another one on each. Replies say it as `Holdfast-Node`.",
        unit="up to 100 letters, digits and . _ : - [ ]",
        default_text="the machine's name and the port",
        read=parse_node,
    )
    takeover_seconds: int = _about(
        2, "With `store`: how long a leader may be silent before another node takes over.", "seconds", 1, 3_600
    )
    append_timeout_seconds: int = _about(
        2, "With `store`: how long a write may go unanswered before its outcome is asked anew.", "seconds", 1, 3_600
    )
    resolve_seconds: int = _about(
        10,
        "With `store`: how long the outcome of an unanswered write is asked for before it counts as unknown.",
        "seconds",
        1,
        3_600,
    )
    after_data_loss: Literal["stop", "continue"] = _about(
        "stop",
        "With `store`: what a node does when the database lost what was answered. `stop` serves nothing until"
        " `holdfast store restored` was run; `continue` lets the fencing counter jump, and serves on.",
    )
    store_schema: str = _about(
        "holdfast",
        "With `store`: the schema in the database that has our tables.",
        unit="up to 63 of a-z, 0-9 and _, no digit first",
        read=parse_schema,
    )
    store_secret_file: Path | None = _about(
        None,
        "With `store`: a file with a secret, the same on each node, under which the authority's key is sealed in"
        " the database.",
    )
    link_ca_file: Path | None = _about(
        None,
        "With `store`: the certificate authorities that a node believes when it connects to another, in PEM; else"
        " those of the system.",
    )
    link_insecure: bool = _about(
        False,
        "With `store`: whether nodes may pass requests on to each other without TLS also when they are not on one"
        " machine. Access tokens go over these links.",
        named_file_only=True,
    )
    tls_cert: Path | None = _about(
        None,
        "The certificate chain, in PEM: with it the server speaks HTTPS instead of HTTP. The key may be in the"
        " same file.",
    )
    tls_key: Path | None = _about(
        None, "The private key of the certificate, in PEM, without a passphrase; not for everybody to read."
    )
    tokens: str = _about(
        "",
        "Static access tokens, each `name:token` (scopes read+claim) or `name:token:scope+scope`, separated by"
        " commas or new lines; a token has 16 or more characters and no blank, `:` or `,`; placeholders are refused.",
        secret=True,
    )
    tokens_file: Path | None = _about(None, "A file with more static tokens, written as in `tokens`.")

    max_ttl_seconds: int = _about(86_400, "The longest time a lease may ask for.", "seconds", 1)
    default_ttl_seconds: int = _about(
        60,
        "The time a lease gets that asks for none; unless it is set, it is never more than `max_ttl_seconds`.",
        "seconds",
        1,
    )
    resource_lock_timeout: int = _about(
        1_800,
        "The time a lock gets that a run asks for at the gateway without a ttl; unless it is set, it is never more"
        " than `max_ttl_seconds`.",
        "seconds",
        1,
        also="resourceLockTimeout",
    )
    max_session_ttl_seconds: int = _about(86_400, "The longest time a session may ask for.", "seconds", 10)
    reentrant: Literal["resume", "holder"] = _about(
        "resume",
        "Who gets a live lease back: with `resume` only a request that says `resume: true`, with `holder` any"
        " request of the same token and session, as OctoStore does.",
    )
    unknown_fields: Literal["refuse", "ignore"] = _about(
        "refuse",
        "What an unknown field in a request's JSON does: `refuse` answers 422 and names the nearest known field.",
    )

    leases_per_principal_max: int = _about(10_000, "Live leases one access token may hold.", "leases", 1)
    tickets_per_principal_max: int = _about(10_000, "The most queue positions one token may have.", "tickets", 1)
    waiting_names_per_principal_max: int = _about(
        10_000, "The names one token may wait for, counted with each of its queue positions.", "names", 1
    )
    queue_max: int = _about(
        20_000, "The longest queue for one name. One token has at most half of the positions.", "tickets", 1
    )
    names_per_call_max: int = _about(1_000, "The most names one call may claim.", "names", 1)
    sessions_per_principal_max: int = _about(10_000, "Open sessions one token may have.", "sessions", 1)
    done_bytes_per_principal_max: int = _about(
        16_777_216,
        "Names of one token remembered as done: names, owners, results, and 256 bytes each.",
        "bytes",
        1,
        2**40,
    )
    watches_per_principal_max: int = _about(100, "Watches one token may have open.", "watches", 1)
    lease_watches_per_principal_max: int = _about(
        10_000,
        "Streams that one token may have open to watch its leases: one for each process that holds some.",
        "streams",
        1,
    )
    watched_names_max: int = _about(16_384, "Names that may be watched at the same time.", "names", 1)
    metadata_chars_max: int = _about(1_024, "The longest metadata, note or result.", "characters", 1)
    tokens_max: int = _about(10_000, "Tokens that `holdfast token create` can make.", "tokens", 1)

    body_bytes_max: int = _about(
        2_097_152, "The largest body of any request; a route takes no more than its largest legal body.", "bytes", 1
    )
    header_bytes_max: int = _about(16_384, "The largest request line and headers of a request together.", "bytes", 256)
    header_timeout_seconds: int = _about(10, "How long a request's headers may take to arrive.", "seconds", 1)
    body_timeout_seconds: int = _about(30, "How long a request's body may take to arrive.", "seconds", 1)
    idle_timeout_seconds: int = _about(75, "How long a connection may stay open between two requests.", "seconds", 1)
    connections_max: int = _about(
        10_000,
        "Connections open at the same time; the last tenth is for tokens that have less than a hundredth open."
        " Fewer, if the process may not have a descriptor for each.",
        "connections",
        1,
    )
    stop_timeout_seconds: int = _about(
        10, "How long requests under way are waited for when the server is told to stop.", "seconds", 0, 3_600
    )

    wrong_tokens_per_minute_max: int = _about(
        60,
        "Wrong tokens from one address (of IPv6: one /64) in a minute; each further one is answered 429 instead of"
        " 401. A right one always passes.",
        "tokens",
        1,
    )

    retry_memory_seconds: int = _about(
        600, "How long a retry with the same idempotency key gets the same answer.", "seconds", 1
    )
    retry_bytes_max: int = _about(
        134_217_728,
        "Remembered retries: texts, and 256 bytes for each and for each of its keys. Beyond it the oldest go.",
        "bytes",
        1,
        2**40,
    )
    ended_bytes_max: int = _about(
        134_217_728, "Remembered free names: texts, and 256 bytes each. Beyond it the oldest go.", "bytes", 1, 2**40
    )
    history_days: int = _about(30, "How long history is kept.", "days", 0, 36_500)
    history_records_max: int = _about(
        10_000_000,
        "The most records of history that are kept; beyond it the oldest of whoever has left the most are dropped.",
        "records",
        0,
    )
    history_bytes_max: int = _about(
        4_294_967_296,
        "The most bytes of history that are kept; beyond it the oldest of whoever has left the most are dropped.",
        "bytes",
        0,
        2**50,
    )
    snapshot_records: int = _about(
        100_000, "Records after which the state and the history are brought up to date in the archive.", "records", 1
    )
    snapshot_mib: int = _about(
        256, "What records may take before they are archived, however few they are.", "MiB", 1, 2**30
    )
    tail_mib_max: int = _about(
        4_096,
        "What records may take that could not be archived yet; beyond it new claims are refused until they are."
        " One principal may have half of it; beyond that only its own are refused.",
        "MiB",
        1,
        2**30,
    )
    disk_reserve_mib: int = _about(
        16, "Disk space set aside: given up when the disk is full, so that renewals and releases go on.", "MiB", 1
    )
    disk_hang_seconds: int = _about(
        30, "How long the disk may keep a write waiting before the server ends itself.", "seconds", 1
    )

    log_format: Literal["auto", "human", "json"] = _about(
        "auto", "How log lines are written: `auto` is `human` on a terminal and `json` elsewhere."
    )
    log_requests: bool = _about(False, "Whether every request gets a log line; secrets never do.")
    metrics_open: bool = _about(
        False, "Whether anybody may read `/metrics`; else an access token with `read` can.", named_file_only=True
    )
    log_events: bool = _about(
        False, "Whether every grant and every end of a lease gets a log line, once it is durable."
    )
    traces: bool = _about(
        False,
        "Whether every request is a span of OpenTelemetry. It needs the extra `otel`; where spans are sent, and"
        " how many, is said by its own variables, as `OTEL_EXPORTER_OTLP_ENDPOINT`.",
    )

    def __repr__(self) -> str:
        shown = (f"{row.name}={'…' if row.secret else repr(getattr(self, row.name))}" for row in TABLE)
        return f"Settings({', '.join(shown)})"


def _rows() -> Iterable[Setting]:
    hints = typing.get_type_hints(Settings)
    for field, about in zip(msgspec.structs.fields(Settings), _ABOUT, strict=True):
        kind = hints[field.name]
        choices = typing.get_args(kind) if typing.get_origin(kind) is Literal else ()
        default = None if field.default is msgspec.NODEFAULT else field.default
        row = msgspec.structs.asdict(about) | {"name": field.name, "kind": _kind_of(kind), "default": default}
        row["default_text"] = about.default_text or _as_text(default)
        row["named_file_only"] = about.named_file_only or row["kind"] in {"path", "text"}
        yield Setting(**row, choices=choices)


def _kind_of(annotation: object) -> Literal["number", "switch", "choice", "path", "text"]:
    if typing.get_origin(annotation) is Literal:
        return "choice"
    if annotation is Path or isinstance(annotation, types.UnionType):
        return "path"
    if annotation is bool:
        return "switch"
    return "number" if annotation is int else "text"


def _as_text(default: object) -> str:
    match default:
        case bool():
            return f"`{str(default).lower()}`"
        case "" | None:
            return "none"
        case _:
            return f"`{default}`"


TABLE: tuple[Setting, ...] = tuple(_rows())
NAMES: Mapping[str, Setting] = {name: row for row in TABLE for name in (row.name, row.also) if name}


def default_data(environment: Mapping[str, str]) -> Path:
    share = environment.get("XDG_DATA_HOME", "")
    # The XDG specification: a path that is not absolute counts as not set.
    return (Path(share) if Path(share).is_absolute() else home_of(environment) / ".local" / "share") / "holdfast"


def home_of(environment: Mapping[str, str]) -> Path:
    return Path(environment["HOME"]) if environment.get("HOME") else Path.home()
