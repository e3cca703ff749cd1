"""What commands have in common that run another one: where it stands on the line, and how signals end the rest."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType

import click
from click.shell_completion import CompletionItem

from holdfast.cli._completing import COMMAND

_STOPS = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


class Stopped(BaseException):
    """A signal asked us to end while no command ran. Not an `Exception`: whatever cleans up does so as for Ctrl-C."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class WithCommand(click.Command):
    """A command that takes everything behind `--` as another command to run."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Cut it off before anything else is read."""
        cut = args.index("--") if "--" in args else len(args)
        ctx.meta[COMMAND] = args[cut + 1 :] if "--" in args else None
        rest = super().parse_args(ctx, args[:cut])
        if not ctx.meta[COMMAND] and not ctx.resilient_parsing:
            what = "there is no --" if ctx.meta[COMMAND] is None else "nothing stands behind --"
            raise click.UsageError(
                f"{what}; write the command at the end, as in: {ctx.command_path} ... -- ./fix.sh", ctx
            )
        return rest

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete the command with files: which program it is, and what it takes, is nothing that we know."""
        if ctx.meta.get(COMMAND) is not None:
            return [CompletionItem(incomplete, type="file")]
        return super().shell_complete(ctx, incomplete)

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        """Show where it goes."""
        return [*super().collect_usage_pieces(ctx), "-- COMMAND..."]


@contextlib.contextmanager
def orderly_end() -> Iterator[None]:
    """Let TERM, HUP and QUIT end what is under way as Ctrl-C does: a wait leaves the line, a claim is given back."""

    def stop(number: int, _frame: FrameType | None) -> None:
        raise Stopped(number)

    # What is ignored stays ignored: that is how nohup works.
    numbers = [number for number in _STOPS if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, stop) for number in numbers}
    try:
        yield
    except Stopped as stopped:
        raise click.exceptions.Exit(128 + stopped.number) from None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
