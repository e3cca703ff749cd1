"""Templates are read beside the loop, when the first reader comes: nobody else waits for that."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import jinja2
import pytest

from holdfast.server.access.auth import Caller
from holdfast.server.http.messages import request_from
from holdfast.server.operations.call import NOBODY, Call
from holdfast.server.pages import signin, site
from holdfast.wire.problems import Problem

ANA = Caller("ana", frozenset({"read"}))


class Told:
    """Stands for the server: takes what is answered."""

    def __init__(self) -> None:
        self.answers: list[tuple[int, bytes]] = []
        self.refused: list[Problem] = []

    def reply(self, _request: object, status: int, body: bytes, _headers: object) -> None:
        self.answers.append((status, body))

    def refuse(self, problem: Problem, *_: object) -> None:
        self.refused.append(problem)

    def bug_in(self, _call: object, error: Exception) -> tuple[int, bytes, tuple[()]]:
        return 500, str(error).encode(), ()

    def call(self, caller: Caller = ANA) -> Any:  # noqa: ANN401 - as handlers take it
        request = request_from(b"GET", b"/ui/x", b"", {}, b"")
        return Call(signin.refusal, request, self.reply, "", {}, {}, caller, self)  # type: ignore[arg-type]


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> site.Templates:
    """The templates of a server that has shown no page yet."""
    made = site.Templates()
    monkeypatch.setattr(signin, "templates", made)
    return made


@pytest.fixture
def told() -> Told:
    """What that server answered."""
    return Told()


def _note(asked: list[int], number: int, _api: object, _call: object) -> None:
    asked.append(number)


def test_the_first_reader_waits_and_the_loop_does_not(told: Told, made: site.Templates) -> None:
    """The handler is called once all templates are there, in the order of asking; from then on at once."""
    asked: list[int] = []

    async def test() -> None:
        for number in range(3):
            signin.inside(partial(_note, asked, number))(told, told.call())  # type: ignore[arg-type]
        assert asked == [] and not made.is_ready
        ready = asyncio.Event()
        made.make_ready(ready.set)
        await ready.wait()
        assert asked == [0, 1, 2]
        signin.inside(partial(_note, asked, 3))(told, told.call())  # type: ignore[arg-type]
        assert asked == [0, 1, 2, 3]

    asyncio.run(test())


def test_strangers_do_not_wait_for_them(told: Told, made: site.Templates) -> None:
    """The sign-in page needs none of them, and lets none be read."""

    async def test() -> None:
        signin.inside(lambda _api, _call: None)(told, told.call(NOBODY))  # type: ignore[arg-type]
        assert told.answers[0][0] == 401 and not made.is_ready

    asyncio.run(test())


def test_what_a_late_handler_raises_is_answered(told: Told, made: site.Templates) -> None:
    """A problem becomes a page, and a bug says so: nobody waits for ever."""

    def refuses(_api: object, _call: object) -> None:
        raise Problem("not_found", "nothing here")

    def breaks(_api: object, _call: object) -> None:
        raise RuntimeError("broken")

    async def test() -> None:
        signin.inside(refuses)(told, told.call())  # type: ignore[arg-type]
        signin.inside(breaks)(told, told.call())  # type: ignore[arg-type]
        ready = asyncio.Event()
        made.make_ready(ready.set)
        await ready.wait()
        assert [problem.code for problem in told.refused] == ["not_found"]
        assert told.answers == [(500, b"broken")]

    asyncio.run(test())


def test_a_template_is_told_of_all_that_it_names() -> None:
    """A name that nobody gave is an error in a test, and not a gap on a page; and text is escaped."""
    known = site.environment()
    with pytest.raises(jinja2.UndefinedError):
        known.from_string("{{ nobody_gave_this }}").render()
    assert known.from_string("<p title='{{ x }}'>").render(x="'\"<&>") == "<p title='&#39;&#34;&lt;&amp;&gt;'>"
