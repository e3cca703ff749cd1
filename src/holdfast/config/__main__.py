"""The docs page of the settings: `python -m holdfast.config > docs/reference/settings.md`. A test compares it."""

from __future__ import annotations

import sys

from holdfast.config.table import NUMBER_MAX, TABLE

_PAGE = """\
# Settings

Every setting can be given in four ways. The first one found wins:

1. on the command line: `holdfast serve --set max_ttl_seconds=3600`; `--listen`, `--data`, `--tls-cert`,
   `--tls-key` and `--public-url` are short for `--set listen=…` and so on
2. in the environment: `HOLDFAST_MAX_TTL_SECONDS=3600`; an empty variable counts as not set
3. in a TOML file: `max_ttl_seconds = 3600`, at the top level. The file is the one named by `--config`, else by
   `HOLDFAST_CONFIG`, else `holdfast.toml` in the working directory. Paths in it are relative to its own folder
4. the default

A `holdfast.toml` that nobody named may be somebody else's: of a project that you cloned, of `/tmp`. Such a file may not
say who gets in, or where: the start is refused if it sets
NAMED_FILE_ONLY.
With `--config holdfast.toml` you say that you trust it. It is refused as a whole if it is a link, belongs to somebody
else than you or root, or can be written by everybody. The greeting names the file that was read.

A name that does not exist, or a value that is not allowed, stops the server before it starts and says where it stands.
A `HOLDFAST_` variable that does not exist is a line in the log, and ignored; those of clients, and what Kubernetes
tells of a service called `holdfast`, are passed over. Numbers may be grouped, as in `10_000`, and are at most
1_000_000_000 where nothing less is said. A number of seconds may be a time with its units: `90s`, `15m`, `1h30m` (in
the file, in quotes). A switch is `true` or `false` (outside the file also `on`, `off`, `yes`, `no`, `1`, `0`). `~/` at
the start of a path is your home. Where two names stand, the file and `--set` take both; the variable is made from the
first.

Other people on the machine can read a command line, so keep `tokens` off it.

This page is written from the program: `python -m holdfast.config > docs/reference/settings.md`.

| setting | default | allowed | meaning |
|---|---|---|---|"""


def as_markdown() -> str:
    named = ", ".join(f"`{row.name}`" for row in TABLE if row.named_file_only)
    lines = [_PAGE.replace("NAMED_FILE_ONLY", named)]
    for row in TABLE:
        allowed = row.allowed if row.kind in {"number", "choice", "switch"} else row.unit or row.kind
        bounded = allowed.replace(f"to {NUMBER_MAX}", "or more")
        name = f"`{row.name}`" + (f", `{row.also}`" if row.also else "")
        lines.append(f"| {name} | {row.default_text} | {bounded} | {row.help} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.stdout.write(as_markdown())
