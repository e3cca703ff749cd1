"""`holdfast backup`: all that a server knows, in one file, while it runs.

The stream is checked as it arrives. The file gets its name only when it is complete and synced.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from holdfast.cli.shared import output
from holdfast.cli.shared.options import as_json, asks_server, server_options, wants_json
from holdfast.errors import HoldfastError
from holdfast.privatefiles import FOR_OTHERS, NotOursError, replacing, sync_folder

if TYPE_CHECKING:
    from holdfast.engine.restore import Contents, Start
    from holdfast.journal.backup import BackupReader

PROGRESS_BYTES = 1024**2

EXAMPLES = """\
\b
holdfast backup /var/backups/holdfast.backup
holdfast doctor --data /var/backups/holdfast.backup
"""


@click.command(short_help="Save all that a server knows, while it runs.", epilog=EXAMPLES)
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--force", is_flag=True, help="Replace FILE if it is there.")
@click.option(
    "--data",
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="Of this data directory, which no server uses, instead of a server.",
)
@as_json
@asks_server
def backup(*, file: Path, force: bool, data: Path | None) -> int:
    """Save all that a server knows into FILE, from which `holdfast restore` makes a data directory.

    The server goes on meanwhile. Your token needs the scope admin, and no prefix. FILE is readable by you alone: it
    holds the server's key and the hashes of all access tokens. It ends with 0 only when FILE is whole and on the disk.
    """
    from holdfast.journal.backup import BackupReader
    from holdfast.journal.interface import JournalError

    reader = BackupReader("what the server sent" if data is None else str(data))
    try:
        if file.is_dir():
            raise click.UsageError(f"{file} is a directory; name a file in it")
        if file.exists() and not force:
            raise click.UsageError(f"{file} is there already; choose another name, or replace it with --force")
        pieces = _from_server() if data is None else _from_directory(data)
        _save(pieces, reader, file)
    except HoldfastError:  # Of the server; some of them are an `OSError` too.
        raise
    except JournalError as error:
        return output.fail(JournalError(error.problem, "There is no backup", *error.remedies))
    except OSError as error:
        problem = f"{file} cannot be written: {error.strerror or error}"
        return output.fail(JournalError(problem, "There is no backup, and nothing is left of it"))
    _tell(reader, file)
    return output.OK


def _from_server() -> Iterator[bytes]:
    from holdfast.cli.operators.probe import Probe

    with Probe.find(server_options()) as server:
        yield from server.pieces("/backup")


def _from_directory(data: Path) -> Iterator[bytes]:
    from holdfast import __version__
    from holdfast.api.auth.secrets import KEY_BYTES, KEY_FILE
    from holdfast.engine.backup import BackupWriter, backup_of_directory
    from holdfast.journal.interface import JournalError
    from holdfast.privatefiles import NotOursError, read_ours

    try:
        key = read_ours(data / KEY_FILE, KEY_BYTES)
    except NotOursError as error:
        raise JournalError(str(error)) from error
    except OSError as error:
        raise JournalError(f"{data / KEY_FILE} cannot be read: {error.strerror}", "Name a data directory") from error
    return backup_of_directory(data, key, __version__, output.wall_ms(output.now()), BackupWriter())


def _save(pieces: Iterator[bytes], reader: BackupReader, file: Path) -> None:
    reported_bytes = 0
    try:
        with replacing(file) as saved:
            for piece in pieces:
                saved.write(piece)
                for _ in reader.feed(piece):
                    pass
                if reader.size_bytes >= reported_bytes + PROGRESS_BYTES:
                    reported_bytes = reader.size_bytes
                    output.progress(f"{output.size(reported_bytes)} …")
            reader.close()
        sync_folder(file.parent)
    finally:
        output.progress("")


def _tell(reader: BackupReader, file: Path) -> None:
    about, totals = reader.about, reader.totals
    if about is None or totals is None:
        return
    made_at = output.at_ms(about.wall_ms)
    if wants_json():
        output.say_json(
            {
                "status": "made",
                "file": str(file),
                "size_bytes": reader.size_bytes,
                "records": totals.records,
                "seq": about.seq,
                "fencing_token": totals.last_token,
                "made_at": made_at,
                "version": about.version,
            }
        )
        return
    what = f"{output.size(reader.size_bytes)}, {totals.records} records of history, as of record {about.seq}"
    output.say(output.plain(f"{file} is whole and on the disk: {what} at {output.clock(made_at, output.now())}"))
    output.hint("It holds the server's key and the hashes of all access tokens: keep it as you keep the server itself.")


TOKEN_MAX = 2**53 - 1
LEASES_SHOWN_MAX = 10

RESTORE_EXAMPLES = """\
\b
holdfast restore holdfast.backup --data /var/lib/holdfast
holdfast restore holdfast.backup --beyond 815  # known to a fence
"""


@click.command(short_help="Create a data directory from a backup.", epilog=RESTORE_EXAMPLES)
@click.argument("file", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option(
    "--data",
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="The directory to create; else what `serve` would use.",
)
@click.option(
    "--beyond",
    metavar="N",
    type=click.IntRange(0, TOKEN_MAX),
    default=0,
    help="Continue fencing tokens after N at least.",
)
@as_json
def restore(*, file: Path, data: Path | None, beyond: int) -> int:
    """Create a data directory from the backup FILE, for a server to start on.

    The directory must be absent or empty. Fencing tokens continue far beyond those of the backup, because it does not
    say which were granted after it. Everything that happened after the backup is lost.
    """
    from holdfast import __version__
    from holdfast.api.auth.secrets import KEY_FILE
    from holdfast.config import load
    from holdfast.engine.restore import read_backup, start_after
    from holdfast.engine.restore import restore as write
    from holdfast.journal.interface import JournalError

    directory = data or load(overrides={}, environment=os.environ, file=None).settings.data
    wall_ms = output.wall_ms(output.now())
    try:
        contents = read_backup(file)
        start = start_after(contents, wall_ms, beyond)
        write(
            file,
            contents,
            start,
            directory,
            key_file=KEY_FILE,
            wall_ms=wall_ms,
            version=__version__,
            tell=lambda done: output.progress(f"{done} of {contents.totals.records} records …"),
        )
    except (JournalError, NotOursError) as error:
        return output.fail(error)
    except OSError as error:
        prefix = f"{error.filename}: " if error.filename else ""
        problem = f"{prefix}{error.strerror or error}"
        return output.fail(JournalError(problem, "Nothing was restored: nothing is left of it"))
    output.progress("")
    _report_restored(file, contents, start, directory)
    return output.OK


def _report_restored(file: Path, contents: Contents, start: Start, directory: Path) -> None:
    about, frozen = contents.about, contents.frozen
    made_at = output.at_ms(about.wall_ms)
    leases = contents.leases()
    if wants_json():
        output.say_json(
            {
                "status": "restored",
                "data": str(directory),
                "made_at": made_at,
                "seq": about.seq,
                "records": contents.totals.records,
                "fencing_token": start.last_token,
                "leases": leases,
                "sessions": len(frozen.sessions),
                "tokens": len(frozen.tokens),
                "waiting": len(frozen.tickets),
            }
        )
        return
    now = output.now()
    when = f"{output.clock(made_at, now)} ({output.ago(made_at, now)})"
    output.say(output.plain(f"{directory} is as the server was at {when}, with {contents.totals.records} records"))
    longest = f", the longest for {output.span(leases[0].left_ms / 1_000)}: their time stood still" if leases else ""
    output.say_fields(
        [
            ("fencing tokens", f"go on after {start.last_token}; the backup had come to {frozen.scalars.last_token}"),
            ("leases", f"{len(leases)} live on{longest}"),
            ("sessions", f"{len(frozen.sessions)} live on, with the secrets that they had"),
            ("access tokens", f"{len(frozen.tokens)}; one that was revoked since is valid again"),
            ("in line", f"{len(frozen.tickets)}"),
        ]
    )
    rows = [[each.name, each.owner or "-", output.span(each.left_ms / 1_000)] for each in leases[:LEASES_SHOWN_MAX]]
    if rows:
        output.say_table(["JOB", "OWNER", "LIVES ON FOR"], rows, folded=("JOB", "OWNER"))
    if len(leases) > LEASES_SHOWN_MAX:
        output.hint(f"and {len(leases) - LEASES_SHOWN_MAX} more; see them with `holdfast jobs`")
    output.hint("What was claimed after the backup is not known, and others can claim it now. Its holders learn that")
    output.hint("with their next request. Now start the server. Readers of /events are told to look anew.")
    if file.stat().st_mode & FOR_OTHERS:
        output.hint(f"Other users may read {file}, and it holds the server's key: chmod 600 '{file}'")
