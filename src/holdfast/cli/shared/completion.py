"""`holdfast completion`: shell completion of commands, options and the names of jobs.

Errors never reach the terminal. bash splits words at colons and equal signs, which names of jobs often have
(`github://…`), so our script passes the line as it was typed, and removes what bash has already.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import ClassVar

import click
from click.shell_completion import (
    BashComplete,
    CompletionItem,
    add_completion_class,
    get_completion_class,
    split_arg_string,
)

from holdfast.cli.shared import output

VARIABLE = "_HOLDFAST_COMPLETE"
SHELLS = ("bash", "zsh", "fish")

COMMAND = "holdfast.command"
"""The context's key for what follows `--`."""
SERVER_OPTIONS = "holdfast.reach"
"""The context's key for the options of `asks_server`."""
ANSWER_SECONDS = 1.0
NAMES_MAX = 100


def claimed_jobs(context: click.Context, _: click.Parameter, incomplete: str) -> list[str] | list[CompletionItem]:
    """Return the claimed jobs with a prefix, if the server answers soon; files for a command after `--`."""
    if context.meta.get(COMMAND) is not None:
        return [CompletionItem(incomplete, type="file")]
    try:
        from holdfast import Holdfast

        # No retries: a person who pressed a key does not wait for them.
        with Holdfast(answer_seconds=ANSWER_SECONDS, retry_seconds=0, **context.meta.get(SERVER_OPTIONS, {})) as server:
            return _printable(each.job_id for each in server.list_claimed_jobs(incomplete or None, limit=NAMES_MAX))
    except Exception:  # noqa: BLE001 - whatever it is, the shell must not show it
        return []


def own_jobs(_: click.Context, __: click.Parameter, incomplete: str) -> list[str]:
    """Return the jobs with a prefix that were claimed from here."""
    from holdfast.cli.shared import leases

    try:
        return _printable(leases.own().jobs(incomplete))
    except Exception:  # noqa: BLE001 - whatever it is, the shell must not show it
        return []


def _printable(names: Iterable[str]) -> list[str]:
    # A line break would end a name, and anything else could act on the terminal.
    return [name for name in names if name.isprintable()]


_BASH = """\
%(complete_func)s() {
    local line="${COMP_LINE:0:COMP_POINT}" word prefix="" type value
    word="${line##*[[:space:]]}"
    [[ $COMP_WORDBREAKS == *[:=]* ]] && prefix="${word%%"${word##*[:=]}"}"
    COMPREPLY=()
    while IFS=, read -r type value; do
        case $type in
            plain)
                [[ $word == [\\"\\']* ]] || printf -v value %%q "$value"
                COMPREPLY+=("${value#"$prefix"}")
                ;;
            dir) compopt -o dirnames ;;
            file) compopt -o default ;;
        esac
    done < <(HOLDFAST_LINE="$line" %(complete_var)s=bash_complete "$1" 2>/dev/null)
}

complete -o nosort -F %(complete_func)s %(prog_name)s
"""


class Bash(BashComplete):
    source_template: ClassVar[str] = _BASH

    @staticmethod
    def _check_version() -> None:
        """Skip click's check, which starts a bash."""

    def get_completion_args(self) -> tuple[list[str], str]:
        line = os.environ.get("HOLDFAST_LINE", "")
        words = split_arg_string(line)[1:]
        if not words or line[-1:].isspace():
            return words, ""
        return words[:-1], words[-1]


def register() -> None:
    add_completion_class(Bash)


EXAMPLES = """\
\b
bash:  echo 'eval "$(holdfast completion bash)"' >> ~/.bashrc
zsh:   echo 'eval "$(holdfast completion zsh)"' >> ~/.zshrc   (after compinit)
fish:  holdfast completion fish > ~/.config/fish/completions/holdfast.fish
"""


@click.command(epilog=EXAMPLES, short_help="Print the completion script for your shell.")
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def completion(context: click.Context, /, *, shell: str) -> None:
    """Print the script that completes commands, options and names of jobs in a shell."""
    register()
    if kind := get_completion_class(shell):
        output.say(kind(context.find_root().command, {}, "holdfast", VARIABLE).source().rstrip("\n"))
