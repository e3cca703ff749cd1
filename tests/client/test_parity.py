"""The client for threads and the one for coroutines are one client: same names, same parameters, same words.

And every public name of the package has its docstring and its place in the reference.
"""

from __future__ import annotations

import inspect
import pydoc
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ForwardRef

import pytest

import holdfast
from holdfast import (
    AsyncClaim,
    AsyncClaims,
    AsyncHoldfast,
    AsyncSession,
    Claim,
    ClaimAllOptions,
    ClaimAnyOptions,
    ClaimJobOptions,
    ClaimOptions,
    Claims,
    Holdfast,
    Session,
)

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "python.md"
PAIRS = [(Holdfast, AsyncHoldfast), (Claim, AsyncClaim), (Claims, AsyncClaims), (Session, AsyncSession)]

DIFFERENT_WORDS = {
    "Holdfast",
    "Holdfast.close",
    "Claim",
    "Claims",
    "Session",
}
"""What the two may say differently: what close leaves, what a cancel does."""


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


def without_session(parameters: list[tuple[str, object, object, str]]) -> list[tuple[str, object, object, str]]:
    return [each for each in parameters if each[0] != "session"]


FUNCTIONS = (
    "claim",
    "claim_any",
    "claim_all",
    "session",
    "claim_job",
    "heartbeat_job",
    "release_job",
    "get_job_owner",
    "list_claimed_jobs",
)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_of_the_module_are_methods_of_the_client(name: str) -> None:
    """A function of the module takes what the client's method of that name takes, and says the same words."""
    method, function = getattr(Holdfast, name), getattr(holdfast, name)
    assert signature(function) == signature(method)[1:]
    assert inspect.getdoc(function) == inspect.getdoc(method)


def test_the_decorator_takes_the_options_of_the_client() -> None:
    """`holdfast.exclusive` takes what `Holdfast.exclusive` takes, and says what each option does."""
    assert signature(holdfast.exclusive) == signature(Holdfast.exclusive)[1:]
    assert sentences(holdfast.exclusive) == sentences(Holdfast.exclusive)


def test_help_needs_no_aiohttp() -> None:
    """`help(holdfast)` and `from holdfast import *` work without aiohttp. `AsyncHoldfast()` says what is missing."""
    program = """
import sys
sys.modules["aiohttp"] = None
import pydoc
import holdfast
assert "how long to stand in line" in pydoc.render_doc(holdfast)
from holdfast import *
try:
    AsyncHoldfast("http://127.0.0.1:1")
except ModuleNotFoundError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0 and " install -e '.[async]'" in done.stdout, done


def sentences(function: Callable[..., Any]) -> list[str]:
    """What a docstring says of the options, sentence by sentence; not its first line, nor which exceptions come."""
    _, _, rest = (inspect.getdoc(function) or "").partition("\n")
    return [each for each in re.split(r"(?<=[.])\s+", " ".join(rest.split())) if each and not each.startswith("Raises")]


@pytest.mark.parametrize("name", ["claim", "session"])
def test_every_option_is_explained(name: str) -> None:
    """`help(holdfast.claim)` explains each option by itself."""
    function = getattr(holdfast, name)
    taken = set(inspect.signature(function).parameters) - {"job_id"}
    assert {each for each in taken if f"`{each}`" in " ".join(sentences(function))} == taken


def test_sessions_claim_as_their_client() -> None:
    """A session's verbs take what the client's take, but for the session."""
    for name in ("claim", "claim_any", "claim_all"):
        assert signature(getattr(Session, name)) == without_session(signature(getattr(Holdfast, name))), name


OPTIONS: list[tuple[type, Sequence[str], set[str]]] = [
    (ClaimOptions, ("claim", "exclusive"), set()),
    (ClaimAnyOptions, ("claim_any", "claim_any_job"), set()),
    (ClaimAllOptions, ("claim_all", "claim_all_jobs"), set()),
    (ClaimJobOptions, ("claim_job",), {"owner", "metadata", "ttl"}),
]
"""Each class of options, the verbs that take them, and what those take beside."""
BESIDE = {"self", "job_id", "job_ids", "session", "on_lost", "remember", "skip"}


@pytest.mark.parametrize(("kind", "verbs", "more"), OPTIONS, ids=lambda each: getattr(each, "__name__", ""))
def test_every_option_is_a_parameter(kind: type, verbs: Sequence[str], more: set[str]) -> None:
    """`help()` and an editor show every option of a claim, with its default, and there are no others."""
    hints = {name: plain(hint) for name, hint in written_types(kind).items()}
    for verb in verbs:
        taken = inspect.signature(getattr(Holdfast, verb)).parameters
        assert set(taken) - BESIDE == set(hints) | more, verb
        assert all(each.kind is not each.VAR_KEYWORD for each in taken.values()), verb
        assert {name: plain(taken[name].annotation) for name in hints} == hints, verb
        assert all(taken[name].default is not inspect.Parameter.empty for name in hints), verb


def written_types(kind: type) -> dict[str, str]:
    """The types of a class of options, as they are written, those of its bases too."""
    found: dict[str, str] = {}
    for name, hint in kind.__annotations__.items():
        found[name] = hint.__forward_arg__ if isinstance(hint, ForwardRef) else hint
    return found


def test_help_shows_the_options() -> None:
    """`help(holdfast.claim)` names each option, its default and what it is for."""
    shown = pydoc.plain(pydoc.render_doc(holdfast.claim)) + pydoc.plain(pydoc.render_doc(Holdfast.claim))
    for option in ClaimOptions.__annotations__:
        assert len(re.findall(rf"\b{option}: (?:'[^']+'|[^'=]+) = ", shown)) == 2, option
        assert f"`{option}`" in shown, option


def test_public_names_have_docstrings() -> None:
    """Every public name, and every public method and property of a public class, says what it is for."""
    missing = []
    for name in set(holdfast.__all__) - {"__version__"}:
        value = getattr(holdfast, name)
        members = public(value) if inspect.isclass(value) and value.__module__.startswith("holdfast.client") else {}
        ours = {key: each for key, each in members.items() if isinstance(each, property) or inspect.isfunction(each)}
        for path, each in {name: value, **{f"{name}.{key}": each for key, each in ours.items()}}.items():
            if not (each.__doc__ or "").strip():
                missing.append(path)
    assert sorted(missing) == []


@pytest.mark.parametrize("kind", [Claim, Claims, Session], ids=lambda kind: kind.__name__)
def test_every_property_is_explained_by_itself(kind: type) -> None:
    """`help(Claim)` says of each property what that is, and not how it is made."""
    said = [each.__doc__ for each in public(kind).values() if isinstance(each, property)]
    assert len(set(said)) == len(said) > 2


def test_public_names_are_in_the_reference() -> None:
    """Every public name, and every method of the clients, is on the page of the reference."""
    page = PAGE.read_text(encoding="utf-8")
    words = set(re.findall(r"\w+", " ".join(re.findall(r"`[^`\n]+`|```.*?```", page, re.DOTALL))))
    methods = {name for one, _ in PAIRS for name, value in public(one).items() if inspect.isfunction(value)}
    assert sorted((set(holdfast.__all__) - {"__version__"} | methods) - words) == []
