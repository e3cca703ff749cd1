"""The `holdfast` command: its subcommands, and the one place that makes a line and an exit code of what went wrong."""

from __future__ import annotations

import os
import sys
import traceback
from pathlib import Path

import click

from holdfast import __version__
from holdfast.cli import _output
from holdfast.cli.doctor import doctor
from holdfast.cli.serve import serve
from holdfast.cli.token import token
from holdfast.errors import HoldfastError, NotAllowed, Refused, SettingsError, Unreachable

EPILOG = """\
\b
Exit codes: 0 done, 64 usage, 69 server unreachable or unavailable,
70 unexpected, 77 not allowed, 130 interrupted.

Start here: `holdfast serve`, then `holdfast doctor` in another terminal.
"""


@click.group(epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="holdfast", message="%(prog)s %(version)s")
def cli() -> None:
    """Holdfast gives every job one live owner."""


for _command in (serve, token, doctor):
    cli.add_command(_command)


def main() -> None:
    """Run the command line and leave with its exit code."""
    if "_HOLDFAST_COMPLETE" in os.environ:  # The shell asks what could follow; click answers and ends.
        cli.main(prog_name="holdfast")
    sys.exit(run(sys.argv[1:]))


def run(arguments: list[str]) -> int:
    """Run one command line and return its exit code; nothing ends in a traceback."""
    try:
        # Not `cli.main`: it has exit codes of its own.
        with cli.make_context("holdfast", arguments) as context:
            code = cli.invoke(context)
        sys.stdout.flush()
        return code if isinstance(code, int) else _output.OK
    except click.exceptions.Exit as error:
        return error.exit_code
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return _output.USAGE
    except click.ClickException as error:
        _output.complain(_usage(error))
        return _output.USAGE
    except (click.Abort, KeyboardInterrupt):
        return _output.INTERRUPTED
    except HoldfastError as error:
        _output.complain(f"{error}{_next_step(error)}")
        return exit_code(error)
    except ModuleNotFoundError as error:
        return _missing(error)
    except OSError as error:
        return _system_error(error)
    except Exception as error:  # noqa: BLE001 - the last resort: a line and a code instead of a traceback
        return _bug(error)


def exit_code(error: HoldfastError) -> int:
    """Tell the exit code of an error."""
    match error:
        case SettingsError():
            return _output.USAGE
        case NotAllowed():
            return _output.NOT_ALLOWED
        case Unreachable() | Refused(status=429 | 502 | 503 | 504):
            return _output.UNREACHABLE
        case Refused(status=400 | 404 | 409 | 422):
            return _output.USAGE
        case _:
            return _output.UNEXPECTED


def _next_step(error: HoldfastError) -> str:
    match error:
        case Unreachable():
            return "; is the server running? Start it with `holdfast serve`, or name another with HOLDFAST_URL"
        case NotAllowed(status=401):
            return " Put a token into HOLDFAST_TOKEN, or its file into HOLDFAST_TOKEN_FILE."
        case NotAllowed():
            return " Use a token with the scope that this needs."
        case Refused(request_id=str(request_id)):
            return f" (request {request_id})"
        case _:
            return ""


def _usage(error: click.ClickException) -> str:
    path = error.ctx.command_path if isinstance(error, click.UsageError) and error.ctx else "holdfast"
    return f"{error.format_message().rstrip('.')}; see `{path} --help`"


def _missing(error: ModuleNotFoundError) -> int:
    if error.name is None or error.name.startswith("holdfast"):
        return _bug(error)
    _output.complain(f"the server's parts are not installed ({error.name}); run: pip install 'holdfast[server]'")
    return _output.UNREACHABLE


def _bug(error: Exception) -> int:
    where = traceback.extract_tb(error.__traceback__)[-1]
    _output.complain(f"unexpected {error!r:.500} at {Path(where.filename).name}:{where.lineno}; please report this")
    return _output.UNEXPECTED


def _system_error(error: OSError) -> int:
    if isinstance(error, BrokenPipeError):
        # Whoever read our output has enough. Python would complain once more when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _output.PIPE_CLOSED
    place = f"{error.filename}: " if error.filename else ""
    _output.complain(f"{place}{error.strerror or error}")
    return _output.UNEXPECTED
