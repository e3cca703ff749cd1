"""`holdfast restore`: a data directory created from a backup."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from holdfast.cli.shared import output, times
from holdfast.cli.shared.options import as_json, wants_json
from holdfast.privatefiles import FOR_OTHERS, NotOursError

if TYPE_CHECKING:
    from holdfast.engine.restore import Contents, Start

TOKEN_MAX = 2**53 - 1
LEASES_SHOWN_MAX = 10

EXAMPLES = """\
\b
holdfast restore holdfast.backup --data /var/lib/holdfast
holdfast restore holdfast.backup --beyond 815  # known to a fence
"""


@click.command(short_help="Create a data directory from a backup.", epilog=EXAMPLES)
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
    wall_ms = times.wall_ms(times.now())
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
    _tell(file, contents, start, directory)
    return output.OK


def _tell(file: Path, contents: Contents, start: Start, directory: Path) -> None:
    about, frozen = contents.about, contents.frozen
    made_at = times.at_ms(about.wall_ms)
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
    now = times.now()
    when = f"{times.clock(made_at, now)} ({times.ago(made_at, now)})"
    output.say(output.plain(f"{directory} is as the server was at {when}, with {contents.totals.records} records"))
    longest = f", the longest for {times.span(leases[0].left_ms / 1_000)}: their time stood still" if leases else ""
    output.say_fields(
        [
            ("fencing tokens", f"go on after {start.last_token}; the backup had come to {frozen.scalars.last_token}"),
            ("leases", f"{len(leases)} live on{longest}"),
            ("sessions", f"{len(frozen.sessions)} live on, with the secrets that they had"),
            ("access tokens", f"{len(frozen.tokens)}; one that was revoked since is valid again"),
            ("in line", f"{len(frozen.tickets)}"),
        ]
    )
    rows = [[each.name, each.owner or "-", times.span(each.left_ms / 1_000)] for each in leases[:LEASES_SHOWN_MAX]]
    if rows:
        output.say_table(["JOB", "OWNER", "LIVES ON FOR"], rows, folded=("JOB", "OWNER"))
    if len(leases) > LEASES_SHOWN_MAX:
        output.hint(f"and {len(leases) - LEASES_SHOWN_MAX} more; see them with `holdfast jobs`")
    output.hint("What was claimed after the backup is not known, and others can claim it now. Its holders learn that")
    output.hint("with their next request. Now start the server. Readers of /events are told to look anew.")
    if file.stat().st_mode & FOR_OTHERS:
        output.hint(f"Other users may read {file}, and it holds the server's key: chmod 600 '{file}'")
