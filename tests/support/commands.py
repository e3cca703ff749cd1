"""Commands as tests write them: the terms of a claim and all else that it says, side by side."""

from typing import Any, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from holdfast.core.commands import Acquire, ClaimAll, ClaimAny
from holdfast.core.values import Terms, Ticket

T = TypeVar("T", bound=Struct)

_TERMS = frozenset(Terms.__struct_fields__)


def acquire(**given: Any) -> Acquire:  # noqa: ANN401 - Here and below: whatever a test wants to say.
    return Acquire(**_sorted_out(given))


def claim_any(**given: Any) -> ClaimAny:  # noqa: ANN401
    return ClaimAny(**_sorted_out(given))


def claim_all(**given: Any) -> ClaimAll:  # noqa: ANN401
    return ClaimAll(**_sorted_out(given))


def asked_by(command: Any) -> Any:  # noqa: ANN401
    """What has the principal, the key and the fingerprint of a command."""
    return getattr(command, "terms", command)


def altered(command: T, **changes: Any) -> T:  # noqa: ANN401
    """The same claim with other terms, or other fields."""
    terms = {field: value for field, value in changes.items() if field in _TERMS}
    rest = {field: value for field, value in changes.items() if field not in _TERMS}
    if isinstance(command, Acquire | ClaimAny | ClaimAll | Ticket):
        return replace(command, terms=replace(command.terms, **terms), **rest)
    return replace(command, **changes)


def _sorted_out(given: dict[str, Any]) -> dict[str, Any]:
    terms = Terms(**{field: value for field, value in given.items() if field in _TERMS})
    return {"terms": terms, **{field: value for field, value in given.items() if field not in _TERMS}}
