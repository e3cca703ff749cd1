"""The `holdfast` command: its subcommands, and how errors become a line and an exit code."""

from __future__ import annotations

import os
import sys
import traceback
from pathlib import Path

import click

from holdfast import __version__
from holdfast.cli.agents import guard, mcp, session, skill
from holdfast.cli.operators import backup, doctor, move, nodes, revoke, serve, store, token, watch
from holdfast.cli.shared import completion, output
from holdfast.cli.shared.options import JSON, takes_text
from holdfast.cli.shared.refusals import as_object, exit_code, sentence
from holdfast.cli.workers import claim, owner, release
from holdfast.cli.workers import run as run_command
from holdfast.errors import HoldfastError
from holdfast.extras import how_to_install

_OWN = (run_command.run, claim.claim, release.heartbeat, release.note, release.release, release.transfer)
_OPERATE = (serve.serve, doctor.doctor, nodes.nodes, backup.backup, backup.restore, store.store, move.move)
SECTIONS: dict[str, tuple[click.Command, ...]] = {
    "Own a job": (*_OWN, session.session),
    "Look around": (owner.owner, owner.jobs, watch.why, watch.history, watch.watch, revoke.check),
    "Operate": (*_OPERATE, token.token, revoke.revoke, revoke.reopen),
    "Agents": (mcp.mcp, skill.skill, guard.guard),
    "Shell": (completion.completion,),
}
"""Every command, in the order of the help."""

HELP_CHARS_MAX = 80

EPILOG = """\
\b
Exit codes: 0 done, 1 held by another (owner, check: the answer is
no), 2 failed, 11 not acquired in time, 12 already done, 13 deadlock,
20 lost or uncertain, 64 usage, 69 server unreachable or unavailable,
70 unexpected, 75 a limit is reached, 77 not allowed, 130 interrupted.

Start here: `holdfast serve`, then `holdfast claim github-issue-1842` in another terminal.
"""


class _Sections(click.Group):
    """A group whose help has a section for each kind of command."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - click's form
        width = max(len(name) for name in self.commands)
        for title, commands in SECTIONS.items():
            with formatter.section(title):
                # Padded, so that all sections have their texts in one column.
                formatter.write_dl(
                    [(f"{each.name:{width}}", each.get_short_help_str(HELP_CHARS_MAX)) for each in commands]
                )


@click.group(
    cls=_Sections, epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}
)
@click.version_option(__version__, prog_name="holdfast", message="%(prog)s %(version)s")
def cli() -> None:
    """Holdfast gives every job one live owner."""


for _commands in SECTIONS.values():
    for _command in _commands:
        cli.add_command(_command)
takes_text(cli)


def main() -> None:
    _fill_standard_files()
    if completion.VARIABLE in os.environ:  # The shell asks what could follow; click answers and ends.
        completion.register()
        cli.main(prog_name="holdfast")
    sys.exit(run(sys.argv[1:]))


def _fill_standard_files() -> None:
    """Open /dev/null for standard files that are closed: else the next connection or pipe would take their place."""
    for file in range(3):
        try:
            os.fstat(file)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    # Python saw that they were closed.
    sys.stdout = sys.stdout or open(1, "w", closefd=False)  # noqa: SIM115 - it lives as long as we do
    sys.stderr = sys.stderr or open(2, "w", closefd=False)  # noqa: SIM115 - it lives as long as we do


def run(arguments: list[str]) -> int:
    """Run one command line and return its exit code; nothing ends in a traceback."""
    try:
        # Not `cli.main`: it has exit codes of its own.
        with cli.make_context("holdfast", arguments) as context:
            code = _invoke(context)
        sys.stdout.flush()
        return code if isinstance(code, int) else output.OK
    except click.exceptions.Exit as error:
        return error.exit_code
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return output.USAGE
    except click.ClickException as error:
        output.complain(_usage(error, arguments))
        return output.USAGE
    except (click.Abort, KeyboardInterrupt):
        return output.INTERRUPTED
    except ModuleNotFoundError as error:
        return _missing_extra(error)
    except OSError as error:
        return _system_error(error)
    except Exception as error:  # noqa: BLE001 - the last resort: a line and a code instead of a traceback
        return _bug(error)


def _invoke(context: click.Context) -> object:
    """Run the command. An error is one line, and with --json an object on standard output too."""
    try:
        return cli.invoke(context)
    except HoldfastError as error:
        if context.meta.get(JSON):
            output.say_json(as_object(error))
        output.complain(sentence(error))
        return exit_code(error)


def _usage(error: click.ClickException, arguments: list[str]) -> str:
    path = error.ctx.command_path if isinstance(error, click.UsageError) and error.ctx else "holdfast"
    return f"{_too_early(error, arguments) or error.format_message().rstrip('.')}; see `{path} --help`"


def _too_early(error: click.ClickException, arguments: list[str]) -> str | None:
    """Say where to write an option that was given before its command; None if it is another mistake."""
    if not isinstance(error, click.NoSuchOption) or error.ctx is None or not isinstance(error.ctx.command, click.Group):
        return None
    group = error.ctx.command
    named = next((word for word in arguments if word in group.commands), None)
    if named is None or not any(error.option_name in each.opts for each in group.commands[named].params):
        return None
    return f"write {error.option_name} after the command: {error.ctx.command_path} {named} {error.option_name}"


def _missing_extra(error: ModuleNotFoundError) -> int:
    if error.name is None or error.name.startswith("holdfast"):
        return _bug(error)
    what, extra = "server's parts", "server"
    if error.name == "asyncpg":
        what, extra = "parts for PostgreSQL", "server,postgres"
    output.complain(f"the {what} are not installed ({error.name}); {how_to_install(extra)}")
    return output.UNREACHABLE


def _bug(error: Exception) -> int:
    where = traceback.extract_tb(error.__traceback__)[-1]
    text = f"{type(error).__name__}: {error}"
    output.complain(f"unexpected {text:.500} at {Path(where.filename).name}:{where.lineno}; please report this")
    return output.UNEXPECTED


def _system_error(error: OSError) -> int:
    if isinstance(error, BrokenPipeError):
        # The reader of our output is gone. Without this, Python would complain when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return output.PIPE_CLOSED
    path_prefix = f"{error.filename}: " if error.filename else ""
    output.complain(f"{path_prefix}{error.strerror or error}")
    return output.UNEXPECTED
