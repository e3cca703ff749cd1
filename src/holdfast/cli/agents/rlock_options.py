"""The options of `rlock` and its kin that are variables as well: imported only where one of them is given."""

from __future__ import annotations

NAMES = ("--ca-file", "--allow-insecure-http")


def taken_out(arguments: list[str]) -> tuple[list[str], dict[str, str]]:
    """Return the other arguments, and the options as variables; a file that is not named is empty."""
    left: list[str] = []
    given: dict[str, str] = {}
    rest = iter(arguments)
    for argument in rest:
        name, equals, value = argument.partition("=")
        if name == "--ca-file":
            given["HOLDFAST_CA_FILE"] = value if equals else next(rest, "")
        elif argument == "--allow-insecure-http":
            given["HOLDFAST_ALLOW_INSECURE_HTTP"] = "1"
        else:
            left.append(argument)
    return left, given
