"""One table feeds the command line, the environment, the file and the docs."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.config import (
    TABLE,
    Setting,
    Settings,
    addresses,
    default_data,
    load,
    parse_address,
    unknown_variables,
)
from holdfast.config.__main__ import as_markdown
from holdfast.errors import SettingsError

PAGE = Path(__file__).resolve().parents[1] / "docs" / "reference" / "settings.md"


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No file of the person who runs the tests takes part."""
    monkeypatch.chdir(tmp_path)


def loaded(
    overrides: dict[str, str] | None = None, environment: dict[str, str] | None = None, file: Path | None = None
) -> Settings:
    environment = {"HOME": "/home/ana", **(environment or {})}
    return load(overrides=overrides or {}, environment=environment, file=file).settings


def refused(
    overrides: dict[str, str] | None = None, environment: dict[str, str] | None = None, file: Path | None = None
) -> SettingsError:
    with pytest.raises(SettingsError) as caught:
        loaded(overrides, environment, file)
    assert "\n" not in str(caught.value)
    return caught.value


def toml(folder: Path, text: str) -> Path:
    file = folder / "some.toml"
    file.write_text(text, encoding="utf-8")
    return file


def test_docs_page_is_the_table() -> None:
    """docs/reference/settings.md is exactly what the table says."""
    renew = "the page is stale; run: .venv/bin/python -m holdfast.config > docs/reference/settings.md"
    assert PAGE.read_text(encoding="utf-8") == as_markdown(), renew


def test_every_field_is_a_row() -> None:
    """Every field of `Settings` is a row with a sentence of help, and every number has its unit."""
    assert [row.name for row in TABLE] == list(Settings.__struct_fields__)
    for row in TABLE:
        assert row.help.endswith(".") and row.help[0].isupper(), row.name
        assert row.kind != "number" or row.unit, row.name
        assert not row.help.startswith(row.name)


def test_defaults_are_allowed() -> None:
    """Every default, written as text, would be accepted; nothing set gives the defaults."""
    settings = loaded()
    for row in TABLE:
        if row.default not in {None, ""}:
            again = loaded({row.name: str(row.default)})
            assert getattr(again, row.name) == getattr(settings, row.name) == row.default
    assert settings.listen == "127.0.0.1:7420"
    assert (settings.max_ttl_seconds, settings.default_ttl_seconds) == (86_400, 60)
    assert settings.tokens_file is None


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.name)
def test_every_setting_can_be_set_everywhere(row: Setting, tmp_path: Path) -> None:
    """The command line beats the environment, the environment the file, and the file the default: for every setting."""
    name, kind = row.name, row.kind
    texts = {
        "number": ("77", "78", "79"),
        "switch": ("yes", "off", "true"),
        "choice": (*row.choices[-1:], *row.choices[:1], *row.choices[-1:]),
        "path": ("/one", "/two", "/three"),
        "text": ("1.1.1.1:1", "2.2.2.2:2", "3.3.3.3:3"),
    }[kind]
    special = {
        "public_url": ("http://one", "http://two:2", "https://three/way"),
        "header_bytes_max": ("777", "778", "779"),
        "allowed_hosts": ("one", ".two.example", "*"),
        "trusted_proxies": ("10.0.0.1", "fd00::/8", "10.0.0.0/8, ::1"),
        "store": ("postgresql://one/a", "postgres://ana@two:2/b", "postgresql://three,four/c"),
        "advertise": ("http://one:1", "http://two:2", "https://three"),
        "store_schema": ("one", "_two", "three_3"),
    }
    texts = special.get(name, texts)
    first, second, third = (getattr(loaded({name: text}), name) for text in texts)
    written = third if isinstance(third, int) else f"'{third}'"
    file = toml(tmp_path, f"{name} = {str(written).lower() if isinstance(written, bool) else written}\n")
    variable = {row.variable: texts[1]}

    assert getattr(loaded({name: texts[0]}, variable, file), name) == first
    assert getattr(loaded(None, variable, file), name) == second
    assert getattr(loaded(None, None, file), name) == third


def test_file_is_found(tmp_path: Path) -> None:
    """`--config` beats HOLDFAST_CONFIG, which beats `holdfast.toml` in the working directory."""
    (tmp_path / "holdfast.toml").write_text("max_ttl_seconds = 1\n")
    (tmp_path / "named.toml").write_text("max_ttl_seconds = 2\n")
    given = toml(tmp_path, "max_ttl_seconds = 3\n")
    named = {"HOLDFAST_CONFIG": str(tmp_path / "named.toml")}

    assert loaded().max_ttl_seconds == 1
    assert loaded(None, named).max_ttl_seconds == 2
    assert loaded(None, named, given).max_ttl_seconds == 3


@pytest.mark.parametrize("row", [row for row in TABLE if row.named_file_only], ids=lambda row: row.name)
def test_found_file_may_not_set_access(row: Setting, tmp_path: Path) -> None:
    """A file that only lay in the working directory cannot set an address, a path or a token; a named one can."""
    file = tmp_path / "holdfast.toml"
    special = {
        "allowed_hosts": "1.1.1.1",
        "trusted_proxies": "1.1.1.1",
        "public_url": "http://1.1.1.1",
        "store": "postgresql://1.1.1.1/1",
        "advertise": "http://1.1.1.1",
        "store_schema": "one",
        "link_insecure": "True",
        "metrics_open": "True",
    }
    value = special.get(row.name, "1.1.1.1:1")
    file.write_text(f"{row.name} = {value.lower() if row.kind == 'switch' else repr(value)}\n")
    error = str(refused())
    assert str(file) in error and row.name in error, "it says which file, and which line of it"
    assert "--config holdfast.toml" in error and row.variable in error, "and what to do"
    assert "1.1.1.1" not in error, "what stands there may be a secret"
    assert str(refused({row.name: value.replace("1", "2")})) == error, "also if its word would not have counted"

    assert str(getattr(loaded(file=Path("holdfast.toml")), row.name)).endswith(value)
    assert loaded(None, {"HOLDFAST_CONFIG": "holdfast.toml"}) == loaded(file=file)


def test_found_file_may_set_some_settings() -> None:
    """Numbers, switches and choices can be found; whatever names an address, a file or a caller must be named."""
    named = {row.name for row in TABLE if row.named_file_only}
    assert {"listen", "data", "tokens", "tokens_file"} <= named
    assert {row.kind for row in TABLE if row.name not in named} == {"number", "switch", "choice"}


def test_found_file_of_others_is_refused(tmp_path: Path, foreign: Callable[[Path], Path]) -> None:
    """A file in the working directory that is a link, another user's, or open to everybody, is not read at all."""
    file = tmp_path / "holdfast.toml"
    file.symlink_to(toml(tmp_path, "max_ttl_seconds = 5\n"))
    assert "is a link" in str(refused())
    file.unlink()
    file.mkdir()
    assert "not a regular file" in str(refused())
    file.rmdir()
    file.write_text("max_ttl_seconds = 5\n")
    file.chmod(0o664)
    assert loaded().max_ttl_seconds == 5, "a group may write to it: a umask of 002 makes all files so"
    file.chmod(0o666)
    error = str(refused())
    assert "open to other users" in error and str(file) in error and "--config holdfast.toml" in error
    assert loaded(file=file).max_ttl_seconds == 5, "one that was named is trusted"
    file.chmod(0o644)
    foreign(file)
    assert "belongs to user" in str(refused())


def test_found_file_has_a_bound(tmp_path: Path) -> None:
    """A file without an end is not read to it."""
    with (tmp_path / "holdfast.toml").open("wb") as file:
        file.truncate(2**40)
    assert "more than 1048576 bytes" in str(refused())


def test_file_that_was_read_is_known(tmp_path: Path) -> None:
    """Whoever loads settings learns the full path of the file that had a say, and that there was none."""
    assert load(overrides={}, environment={}, file=None).file is None
    file = tmp_path / "holdfast.toml"
    file.write_text("max_ttl_seconds = 5\n")
    assert load(overrides={}, environment={}, file=None).file == file
    assert load(overrides={}, environment={}, file=Path("holdfast.toml")).file == file


def test_missing_file_is_refused(tmp_path: Path) -> None:
    """A file that was named and is not there is an error that says who named it."""
    assert "--config" in str(refused(file=tmp_path / "nowhere.toml"))
    error = refused(None, {"HOLDFAST_CONFIG": str(tmp_path / "nowhere.toml")})
    assert "HOLDFAST_CONFIG" in str(error) and "nowhere.toml" in str(error)


@pytest.mark.parametrize("content", [b"max_ttl_seconds =", b"\xff\xfe", b"a = 1\na = 2\n"])
def test_file_that_is_not_toml_is_refused(tmp_path: Path, content: bytes) -> None:
    """Neither bad syntax, nor bytes that are not UTF-8, nor a name that stands twice gets past."""
    file = tmp_path / "bad.toml"
    file.write_bytes(content)
    assert "is not TOML" in str(refused(file=file))


def test_unknown_name_names_the_nearest(tmp_path: Path) -> None:
    """A typo is refused with the name that was probably meant, and with the place where it stands."""
    error = refused({"max_ttl_second": "5"})
    assert "command line" in str(error) and "did you mean max_ttl_seconds?" in str(error)
    file = toml(tmp_path, "lisen = '1.2.3.4:5'\n")
    error = refused(file=file)
    assert str(file) in str(error) and "did you mean listen?" in str(error)
    assert "did you mean" not in str(refused({"zzz": "5"}))
    assert "there is no such setting" in str(refused(file=toml(tmp_path, "[server]\nlisten = '1.2.3.4:5'\n")))


@pytest.mark.parametrize(
    ("name", "text", "allowed"),
    [
        ("max_ttl_seconds", "abc", "a whole number of seconds, 1 to 1000000000"),
        ("max_ttl_seconds", "", "a whole number of seconds, 1 to 1000000000"),
        ("max_ttl_seconds", "0", "a whole number of seconds, 1 to 1000000000"),
        ("max_ttl_seconds", "-5", "a whole number of seconds, 1 to 1000000000"),
        ("max_ttl_seconds", "1000000001", "a whole number of seconds, 1 to 1000000000"),
        ("max_ttl_seconds", "1.5", "a whole number of seconds, 1 to 1000000000"),
        ("max_ttl_seconds", "٣", "a whole number of seconds, 1 to 1000000000"),
        ("max_session_ttl_seconds", "9", "a whole number of seconds, 10 to 1000000000"),
        ("link_insecure", "maybe", "true or false"),
        ("reentrant", "Resume", "resume or holder"),
        ("log_format", "xml", "auto, human or json"),
        ("data", "", "a path"),
        ("data", "a\0b", "a path"),
        ("listen", "7420", "host:port or [IPv6]:port"),
        ("listen", "::1:7420", "host:port or [IPv6]:port"),
        ("listen", "host:70000", "host:port or [IPv6]:port"),
        ("listen", "http://host:1", "host:port or [IPv6]:port"),
        ("allowed_hosts", "one.example, two.example:80", "names of hosts, separated by commas"),
        ("allowed_hosts", "http://one.example", "names of hosts, separated by commas"),
        ("allowed_hosts", "*.example.org", "names of hosts, separated by commas"),
        ("allowed_hosts", "a..b", "names of hosts, separated by commas"),
        ("trusted_proxies", "10.0.0.0/8, proxy.example", "IP addresses and networks, separated by commas"),
        ("trusted_proxies", "10.0.0.1/8", "IP addresses and networks, separated by commas"),
        ("trusted_proxies", "10.0.0", "IP addresses and networks, separated by commas"),
        ("allowed_hosts", "bücher.example", "names of hosts, separated by commas"),
        ("store", "mysql://db/holdfast", "postgresql://user@host:port/database"),
        ("store", "postgresql://db/hold fast", "postgresql://user@host:port/database"),
        ("advertise", "node1:7420", "https://host:port"),
        ("node_name", "node\u00fc", "up to 100 letters, digits and . _ : - [ ]"),
        ("store_schema", "holdfast; drop", "up to 63 of a-z, 0-9 and _, no digit first"),
        ("store_schema", "", "up to 63 of a-z, 0-9 and _, no digit first"),
        ("after_data_loss", "ignore", "stop or continue"),
    ],
)
def test_value_that_is_not_allowed_is_refused(name: str, text: str, allowed: str) -> None:
    """A bad value is refused with the setting, where it came from, and what is allowed."""
    error = refused({name: text})
    assert (error.setting, error.origin, error.allowed) == (name, "command line", allowed)
    assert all(part in str(error) for part in (name, "command line", allowed))
    if text:
        variable = f"HOLDFAST_{name.upper()}"
        assert refused(None, {variable: text}).origin == variable


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("allowed_hosts", "one, *.Example.org", "'*.Example.org' is not the name of a host: write .example.org,"),
        ("allowed_hosts", ".", "'.' is not the name of a host"),
        ("trusted_proxies", "10.0.0.1/8", "10.0.0.1/8 is an address in a network: write 10.0.0.0/8, or 10.0.0.1 for"),
        ("trusted_proxies", "fd00::1/64", "write fd00::/64, or fd00::1 for"),
        ("trusted_proxies", "proxy.example", "'proxy.example' is not an IP address or a network, as 10.0.3.7 or"),
    ],
)
def test_intended_value_is_suggested(name: str, text: str, problem: str) -> None:
    """An address or a name that is nearly right is refused with what to write instead."""
    assert problem in refused({name: text}).problem


@pytest.mark.parametrize(
    "line",
    [
        "max_ttl_seconds = '60'",
        "max_ttl_seconds = 60.0",
        "max_ttl_seconds = true",
        "link_insecure = 1",
        "link_insecure = 'true'",
        "listen = 7420",
        "data = 1",
        "tokens = ['a:0123456789abcdef']",
        "reentrant = true",
    ],
)
def test_file_has_types(tmp_path: Path, line: str) -> None:
    """A value of the wrong TOML type is refused with the file's name."""
    file = toml(tmp_path, line)
    error = refused(file=file)
    assert (error.setting, error.origin) == (line.partition(" ")[0], str(file))


def test_secret_is_never_shown(tmp_path: Path) -> None:
    """Neither the settings' repr nor an error shows the tokens."""
    secret = "ana:0123456789abcdef"
    settings = loaded({"tokens": secret})
    assert settings.tokens == secret
    assert "0123456789abcdef" not in f"{settings!r} {settings}"
    assert "0123456789abcdef" not in str(refused(file=toml(tmp_path, f"tokens = ['{secret}']")))
    assert "hunter2" not in f"{loaded(environment={'HOLDFAST_STORE': 'postgresql://ana:hunter2@db/h'})!r}"
    assert "hunter2" not in str(refused(environment={"HOLDFAST_STORE": "mysql://ana:hunter2@db/h"}))


@pytest.mark.parametrize("listen", ["0.0.0.0:7420", "[::]:7420", "[0:0::0]:1"])
def test_node_needs_an_advertised_address(listen: str) -> None:
    """An address for all is none by which other nodes reach this one: then `advertise` must say it."""
    error = refused({"store": "postgresql://db/h", "listen": listen})
    assert error.setting == "advertise" and listen in error.problem
    assert loaded({"store": "postgresql://db/h", "listen": listen, "advertise": "http://a:7420"}).listen == listen
    assert loaded({"store": "postgresql://db/h", "listen": "10.0.0.1:7420"}).advertise == ""
    assert loaded({"listen": listen}).listen == listen


def test_numbers_may_be_grouped() -> None:
    """`10_000` is ten thousand, also outside the file."""
    assert loaded({"tokens_max": "10_000"}).tokens_max == 10_000


def test_empty_variable_counts_as_not_set() -> None:
    """A variable that is there but empty changes nothing."""
    assert loaded(None, {"HOLDFAST_MAX_TTL_SECONDS": "", "HOLDFAST_DATA": "", "HOLDFAST_CONFIG": ""}) == loaded()


def test_data_has_a_home() -> None:
    """Without a word the data goes to $XDG_DATA_HOME/holdfast, else below the home; a relative XDG path is ignored."""
    assert loaded().data == Path("/home/ana/.local/share/holdfast")
    assert loaded(None, {"XDG_DATA_HOME": "/var/x"}).data == Path("/var/x/holdfast")
    assert default_data({"HOME": "/home/ana", "XDG_DATA_HOME": "x"}) == Path("/home/ana/.local/share/holdfast")


def test_paths_are_relative_to_their_file(tmp_path: Path) -> None:
    """A path in the file starts at the file's folder, one on the command line where we are; `~/` is the home."""
    folder = tmp_path / "etc"
    folder.mkdir()
    file = toml(folder, "data = 'store'\ntokens_file = '~/tokens'\n")
    assert loaded(file=file).data == folder / "store"
    assert loaded(file=file).tokens_file == Path("/home/ana/tokens")
    assert loaded({"data": "store"}).data == Path("store")


def test_default_ttl_stays_below_the_maximum() -> None:
    """A lower maximum lowers the default with it; a default that was set above the maximum is refused."""
    assert loaded({"max_ttl_seconds": "30"}).default_ttl_seconds == 30
    assert "max_ttl_seconds" in str(refused({"max_ttl_seconds": "30", "default_ttl_seconds": "60"}))


def test_unknown_variables_are_reported() -> None:
    """A HOLDFAST_ variable that means nothing is reported with the nearest that does; ours and others' are not."""
    environment = {row.variable: "1" for row in TABLE} | {"HOLDFAST_URL": "x", "HOLDFAST_TOKEN": "x", "HOME": "/"}
    assert unknown_variables(environment) == []
    (sentence,) = unknown_variables({**environment, "HOLDFAST_MAX_TTL": "secret value"})
    assert "HOLDFAST_MAX_TTL is not known" in sentence and "HOLDFAST_MAX_TTL_SECONDS" in sentence
    assert "secret value" not in sentence


def test_variables_of_clients_are_not_reported() -> None:
    """What the program itself reads or hands to its commands is known to the server, and so is what Kubernetes says."""
    found: set[str] = set()
    for path in sorted((Path(__file__).parents[1] / "src" / "holdfast").rglob("*.py")):
        found.update(re.findall(r"\"(HOLDFAST_[A-Z_]+[A-Z])\"", path.read_text("utf-8")))
    assert {"HOLDFAST_JOB", "HOLDFAST_OWNER", "HOLDFAST_SESSION", "HOLDFAST_CA_FILE"} < found
    assert unknown_variables(dict.fromkeys(found, "x")) == []
    service = ["SERVICE_HOST", "SERVICE_PORT", "SERVICE_PORT_HTTP", "PORT", "PORT_7420_TCP", "PORT_7420_TCP_ADDR"]
    for start in ("HOLDFAST", "HOLDFAST_SERVER"):
        assert unknown_variables({f"{start}_{end}": "tcp://10.0.0.1:7420" for end in service}) == []


def test_nearest_variable_is_suggested() -> None:
    """What all variables begin with does not make any two of them near."""
    (sentence,) = unknown_variables({"OCTOSTORE_URL": "x", "STATIC_TOKENS": "a:secret", "BIND_ADDR": "0.0.0.0:1"})
    assert sentence.startswith("variables of OctoStore are not read: OCTOSTORE_URL, STATIC_TOKENS;")
    (sentence,) = unknown_variables({"HOLDFAST_QQQ": "1"})
    assert "did you mean" not in sentence
    (sentence,) = unknown_variables({"HOLDFAST_LISTN": "1"})
    assert sentence.endswith("did you mean HOLDFAST_LISTEN?")


def test_addresses() -> None:
    """An address is a host or a bracketed IPv6 address, and a port."""
    assert parse_address("127.0.0.1:0") == ("127.0.0.1", 0)
    assert parse_address("[::1]:7420") == ("::1", 7420)
    assert parse_address("holdfast.internal:65535") == ("holdfast.internal", 65_535)
    for text in ("", ":1", "host", "host:", "host:x", "[::1]", "a b:1", "user@host:1"):
        with pytest.raises(ValueError, match="is not host:port"):
            parse_address(text)


def test_another_programs_name_is_taken_too(tmp_path: Path) -> None:
    """`resourceLockTimeout`, as Action Llama spells it, is the same setting; the file may have it once."""
    file = toml(tmp_path, "resourceLockTimeout = 90\n")
    assert loaded(file=file).resource_lock_timeout == 90
    assert loaded(None, {"HOLDFAST_RESOURCE_LOCK_TIMEOUT": "91"}, file).resource_lock_timeout == 91
    assert loaded({"resourceLockTimeout": "92"}, None, file).resource_lock_timeout == 92
    assert loaded({"resource_lock_timeout": "93"}, None, file).resource_lock_timeout == 93
    both = toml(tmp_path, "resourceLockTimeout = 90\nresource_lock_timeout = 90\n")
    assert "leave one of them out" in str(refused(file=both))
    error = refused(file=toml(tmp_path, "resourceLockTimout = 90\n"))
    assert "did you mean resourceLockTimeout?" in str(error)
    for text in ("0", "-5", "'90'", "1.5", "true"):
        assert "1 to 1000000000" in str(refused(file=toml(tmp_path, f"resourceLockTimeout = {text}\n"))), text


def test_resource_lock_timeout_stays_within_the_longest(tmp_path: Path) -> None:
    """A default beyond `max_ttl_seconds` is lowered to it; what was given beyond it is refused."""
    assert loaded({"max_ttl_seconds": "600"}).resource_lock_timeout == 600
    assert loaded().resource_lock_timeout == 1_800
    error = refused({"max_ttl_seconds": "600", "resourceLockTimeout": "601"})
    assert "resource_lock_timeout" in str(error) and "at most max_ttl_seconds, which is 600" in str(error)


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("postgresql://h@db/x", "postgresql://h@db/x"),
        ("postgresql://h:pw@db/x", "postgresql://h@db/x"),
        ("postgresql://h:p@ss:w@a,b:5/x", "postgresql://h@a,b:5/x"),
        ("postgresql://:pw@db/x", "postgresql://db/x"),
        ("postgresql:///x?host=/tmp/a&password=a%20b&port=5", "postgresql:///x?host=/tmp/a&port=5"),
        ("postgresql://h@db/x?PASSWORD=pw", "postgresql://h@db/x"),
        ("postgresql://[bad", "(not a URL)"),
    ],
)
def test_a_store_is_shown_without_its_password(given: str, shown: str) -> None:
    """No form of address keeps its password when it is shown."""
    assert addresses.shown(given) == shown
    assert addresses.has_password(given) == (given != shown)


def test_a_password_on_a_command_line_is_refused() -> None:
    """Every user of a machine can read command lines: a store's password may stand anywhere else."""
    url = "postgresql://h:hunter2@db/x"
    with pytest.raises(SettingsError, match="PGPASSFILE") as caught:
        loaded({"store": url})
    assert "hunter2" not in str(caught.value)
    assert loaded(environment={"HOLDFAST_STORE": url}).store == url
