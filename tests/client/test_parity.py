"""The client for threads and the one for coroutines are one client: same names, same parameters, same words.

And every public name of the package has its docstring and its place in the reference.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import (
    AsyncClaim,
    AsyncClaims,
    AsyncHoldfast,
    AsyncSession,
    Claim,
    Claims,
    Holdfast,
    Session,
)

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "python.md"
PAIRS = [(Holdfast, AsyncHoldfast), (Claim, AsyncClaim), (Claims, AsyncClaims), (Session, AsyncSession)]

DIFFERENT_WORDS = {
    "Holdfast",
    "Holdfast.claim",
    "Holdfast.close",
    "Holdfast.exclusive",
    "Claim",
    "Claim.release",
    "Claims",
    "Session",
}
"""What the two may say differently: how `on_lost` is called, what close leaves, what a cancel does."""


def public(kind: type) -> dict[str, Any]:
    return {name: inspect.getattr_static(kind, name) for name in dir(kind) if not name.startswith("_")}


def plain(text: object) -> str:
    """Words and annotations without what only coroutines have."""
    said = inspect.cleandoc(str(text)).replace("async with", "with").replace("Async", "").replace("async ", "")
    return re.sub(r"Acquiring\[(\w+)\]", r"\1", " ".join(said.split()))


def signature(function: Callable[..., Any]) -> list[tuple[str, object, object, str]]:
    found = inspect.signature(function)
    parameters = [(each.name, each.kind, each.default, plain(each.annotation)) for each in found.parameters.values()]
    return [*parameters, ("return", None, None, plain(found.return_annotation))]


@pytest.mark.parametrize(("one", "other"), PAIRS, ids=lambda kind: kind.__name__)
def test_same_names(one: type, other: type) -> None:
    """What one has the other has, and each is the same kind of thing."""
    assert set(public(one)) == set(public(other))
    for name, value in public(one).items():
        assert isinstance(value, property) == isinstance(public(other)[name], property), name


@pytest.mark.parametrize(("one", "other"), PAIRS, ids=lambda kind: kind.__name__)
def test_same_parameters(one: type, other: type) -> None:
    """Every method takes the same parameters with the same defaults and types, and gives the same."""
    for name, value in public(one).items():
        if not isinstance(value, property):
            assert signature(getattr(one, name)) == signature(getattr(other, name)), f"{one.__name__}.{name}"
    if one is Holdfast:
        assert signature(one) == signature(other)


def test_same_words() -> None:
    """Every docstring says the same, but for the differences that are meant."""
    different = set()
    for one, other in PAIRS:
        if plain(one.__doc__) != plain(other.__doc__):
            different.add(one.__name__)
        for name in public(one):
            if plain(getattr(one, name).__doc__) != plain(getattr(other, name).__doc__):
                different.add(f"{one.__name__}.{name}")
    assert different == DIFFERENT_WORDS


def test_functions_of_the_module_are_methods_of_the_client() -> None:
    """A function of the module takes what the client's method of that name takes, in the same order and no more."""
    for name in ("claim", "claim_any", "claim_all", "session", "exclusive"):
        method = signature(getattr(Holdfast, name))[1:]
        function = signature(getattr(holdfast, name))
        assert function == [each for each in method if name == "session" or each[0] != "session"], name
    for name in ("claim_job", "heartbeat_job", "release_job", "get_job_owner", "list_claimed_jobs"):
        method = signature(getattr(Holdfast, name))
        assert all(each in method for each in signature(getattr(holdfast, name))), name


def test_public_names_have_docstrings() -> None:
    """Every public name, and every public method and property of a public class, says what it is for."""
    missing = []
    for name in set(holdfast.__all__) - {"__version__"}:
        value = getattr(holdfast, name)
        members = public(value) if inspect.isclass(value) and value.__module__.startswith("holdfast.client") else {}
        ours = {key: each for key, each in members.items() if isinstance(each, property) or inspect.isfunction(each)}
        for place, each in {name: value, **{f"{name}.{key}": each for key, each in ours.items()}}.items():
            if not (each.__doc__ or "").strip():
                missing.append(place)
    assert sorted(missing) == []


def test_public_names_are_in_the_reference() -> None:
    """Every public name, and every method of the clients, is on the page of the reference."""
    page = PAGE.read_text(encoding="utf-8")
    words = set(re.findall(r"\w+", " ".join(re.findall(r"`[^`\n]+`|```.*?```", page, re.DOTALL))))
    methods = {name for one, _ in PAIRS for name, value in public(one).items() if inspect.isfunction(value)}
    assert sorted((set(holdfast.__all__) - {"__version__"} | methods) - words) == []
