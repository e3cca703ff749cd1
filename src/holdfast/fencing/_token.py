"""Fencing tokens and resources, and how every fence refuses.

A token is an integer from 0 to 2^53−1: it fits a JSON number and a BIGINT. A resource is a name of your choice for what
is written to, such as the name of the job.
"""

from __future__ import annotations

import re

from holdfast.errors import StaleToken

TOKEN_MAX = 2**53 - 1
RESOURCE_CHARACTERS_MAX = 256


def stale(resource: str, token: int, current: int) -> StaleToken:
    text = (
        f"fencing token {token} is too old for {resource}, which has seen {current}: "
        "you no longer own the job, so stop, and claim it again if it still needs doing"
    )
    return StaleToken(text, resource=resource, fencing_token=token, current=current)


def checked_token(token: int) -> int:
    """Return it if it is a token. `True` is not one, although `bool` is an `int`."""
    if isinstance(token, bool) or not isinstance(token, int):
        raise TypeError(f"a fencing token is a whole number, not {type(token).__name__}: pass claim.fencing_token")
    if not 0 <= token <= TOKEN_MAX:
        raise ValueError(f"a fencing token is 0 to {TOKEN_MAX}, not {token}: pass claim.fencing_token")
    return token


def parse_token(text: str) -> int:
    """Read a token from a header or from `HOLDFAST_FENCING_TOKEN`: digits and nothing else, or ValueError."""
    if not re.fullmatch(r"[0-9]{1,16}", text):
        raise ValueError(f"a fencing token is a whole number in at most 16 digits, not {text[:40]!r}")
    return checked_token(int(text))


def checked_resource(resource: str) -> str:
    """Return it if every fence can store it: PostgreSQL has no NUL, and a MySQL key has a maximum length."""
    if not isinstance(resource, str):
        raise TypeError(f"a resource is named by a str, not {type(resource).__name__}")
    if not 1 <= len(resource) <= RESOURCE_CHARACTERS_MAX:
        raise ValueError(f"a resource's name has 1 to {RESOURCE_CHARACTERS_MAX} characters, not {len(resource)}")
    if "\0" in resource or any("\ud800" <= character <= "\udfff" for character in resource):
        raise ValueError(f"a resource's name is text without NUL: {resource!r}")
    return resource
