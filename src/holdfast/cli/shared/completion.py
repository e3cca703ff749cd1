"""`holdfast completion`: the script that lets a shell complete commands, options and the names of jobs.

bash splits a word at colons and equal signs, and names of jobs are often addresses (`github://…`). So its script hands
over the line as it was typed, and takes off what bash has before the last of them anyway.
"""

from __future__ import annotations

import os
from typing import ClassVar

import click
from click.shell_completion import BashComplete, add_completion_class, get_completion_class, split_arg_string

from holdfast.cli.shared import output

VARIABLE = "_HOLDFAST_COMPLETE"
SHELLS = ("bash", "zsh", "fish")

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
    """bash, and names with colons."""

    source_template: ClassVar[str] = _BASH

    @staticmethod
    def _check_version() -> None:
        """Leave it: the script needs bash 4.4 or later, and the reference says so."""

    def get_completion_args(self) -> tuple[list[str], str]:
        """Take the line apart as a shell would."""
        line = os.environ.get("HOLDFAST_LINE", "")
        words = split_arg_string(line)[1:]
        if not words or line[-1:].isspace():
            return words, ""
        return words[:-1], words[-1]


def register() -> None:
    """Let click know our bash."""
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
    kind = get_completion_class(shell)
    if kind is None:
        raise click.UsageError(f"{shell} is not known")
    output.say(kind(context.find_root().command, {}, "holdfast", VARIABLE).source().rstrip("\n"))
