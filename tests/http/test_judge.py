"""The judge of connections is judged: each bug is planted and must be found, and no correct server may be accused."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.http import naive_http
from tests.http.driver import SETTINGS
from tests.http.histories import ENDINGS, GOOD, draw, request
from tests.http.imaginary_server import Imagined, imagine, message
from tests.http.judge import ReceivedData, Verdict, judge
from tests.support import callers, proof

ONE = request("POST", "/locks/n/1/acquire", body=b'{"metadata": "1"}')
TWO = request("POST", "/locks/n/2/acquire", body=b'{"metadata": "2"}')
HIDDEN = request("POST", "/locks/n/hidden/acquire", body=b"{}")
NOT_JSON = request("POST", "/locks/n/3/acquire", body=HIDDEN)
EXPECTS = request("POST", "/locks/n/4/acquire", "Expect: 100-continue", body=b"{}")
CLOSING = request("GET", "/health", "Connection: close")
OLD = request("GET", "/health", version="1.0")
WATCH = request("GET", "/locks/n/5/watch")
NO_TOKEN = request("POST", "/locks/n/6/acquire", "Transfer-Encoding: chunked", body=b"", token=None)
LET_IN_LATE = NO_TOKEN + b"2\r\n{}\r\n0\r\nAuthorization: Bearer " + callers.ALICE.encode() + b"\r\n\r\n"
STRAY = b"x"


def judged(sent: bytes, imagined: Imagined, *, half_closed: bool = False) -> Verdict:
    verdict = judge(sent, ReceivedData(imagined.data, "closed"), half_closed=half_closed)
    verdict.check_held(imagined.held)
    return verdict


def test_correct_server_gets_no_complaint() -> None:
    """What the model says must be said is never complained of, whatever was asked, and every kind is drawn."""
    kinds: set[str] = set()
    for seed in range(proof.count("wire: histories imagined")):
        history = draw(seed, "n")
        verdict = judged(history.sent, imagine(history.sent), half_closed=history.finish == "half-close")
        assert not verdict.complaints, f"{history}\n{verdict.complaints}"
        kinds |= set(history.kinds)
    assert kinds == {*GOOD, *ENDINGS}


def test_servers_have_the_limits_of_the_model() -> None:
    """The model refuses what is larger than the servers are told to take."""
    assert SETTINGS["header_bytes_max"] == naive_http.HEAD_BYTES_MAX
    assert SETTINGS["body_bytes_max"] == naive_http.BODY_BYTES_MAX


def _swap(imagined: Imagined) -> None:
    imagined.said[0], imagined.said[1] = imagined.said[1], imagined.said[0]


def _drop_first(imagined: Imagined) -> None:
    del imagined.said[0]


def _drop_last(imagined: Imagined) -> None:
    del imagined.said[-1]


def _cut(imagined: Imagined) -> None:
    imagined.said[-1] = imagined.said[-1][:-1]


def _say_more(imagined: Imagined) -> None:
    imagined.said.append(message(200, b"{}"))


def _answer_twice(imagined: Imagined) -> None:
    imagined.said.insert(0, imagined.said[0])


def _run_the_body(imagined: Imagined) -> None:
    imagined.held.append("n/hidden")


def _run_the_body_and_say_so(imagined: Imagined) -> None:
    imagined.said.insert(1, message(200, b'{"status": "acquired", "metadata": null}'))
    imagined.held.append("n/hidden")


def _forget(imagined: Imagined) -> None:
    imagined.held.remove("n/1")


def _into_the_stream(imagined: Imagined) -> None:
    imagined.said.append(message(200, b"{}"))


def _as_a_chunk(imagined: Imagined) -> None:
    text = message(200, b"{}")
    imagined.said.append(b"%x\r\n%b\r\n" % (len(text), text))


def _let_in(imagined: Imagined) -> None:
    imagined.said[0] = message(200, b'{"status": "acquired", "metadata": null}')
    imagined.held.append("n/6")


def _continue_early(imagined: Imagined) -> None:
    imagined.said.remove(b"HTTP/1.1 100 Continue\r\n\r\n")
    imagined.said.insert(0, b"HTTP/1.1 100 Continue\r\n\r\n")


def _in_chunks(imagined: Imagined) -> None:
    head, _, body = imagined.said[0].partition(b"\r\n\r\n")
    head = head.replace(b"Content-Length: %d" % len(body), b"Transfer-Encoding: chunked")
    imagined.said[0] = head + b"\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)


def _refuse_instead(imagined: Imagined) -> None:
    imagined.said[:] = imagined.said[-1:]


def _bare(imagined: Imagined) -> None:
    imagined.said[0] = imagined.said[0].replace(b"no-store", b"max-age=60")


PLANTED: dict[str, tuple[bytes, Callable[[Imagined], None]]] = {
    "two answers swapped": (ONE + TWO + CLOSING, _swap),
    "the first answer missing": (ONE + TWO + CLOSING, _drop_first),
    "the last answer missing": (ONE + TWO + CLOSING, _drop_last),
    "an answer cut off": (ONE + CLOSING, _cut),
    "one answer too many": (ONE + CLOSING, _say_more),
    "one answer twice": (ONE + ONE + CLOSING, _answer_twice),
    "a body run as a request": (NOT_JSON + CLOSING, _run_the_body),
    "a body run as a request and answered": (NOT_JSON + CLOSING, _run_the_body_and_say_so),
    "what follows the end run": (CLOSING + HIDDEN, _run_the_body),
    "what follows a refusal run": (ONE + STRAY + HIDDEN, _run_the_body),
    "a grant forgotten": (ONE + CLOSING, _forget),
    "an answer behind a stream": (ONE + WATCH + TWO, _into_the_stream),
    "an answer as a chunk of a stream": (ONE + WATCH + TWO, _as_a_chunk),
    "a trailer that lets in": (LET_IN_LATE + CLOSING, _let_in),
    "continue before an answer that is owed": (ONE + EXPECTS + CLOSING, _continue_early),
    "chunks for HTTP/1.0": (OLD, _in_chunks),
    "a refusal instead of what was decided": (ONE + STRAY, _refuse_instead),
    "an answer that may be kept": (ONE + CLOSING, _bare),
}


@pytest.mark.parametrize("bug", PLANTED)
def test_planted_bug_is_found(bug: str) -> None:
    """The judge finds each bug in a server that has only this one, and nothing before it was planted."""
    sent, plant = PLANTED[bug]
    imagined = imagine(sent)
    assert not judged(sent, imagined, half_closed=True).complaints
    plant(imagined)
    assert judged(sent, imagined, half_closed=True).complaints


def test_open_end_is_found() -> None:
    """A connection that must end and does not is complained of."""
    assert judge(ONE + CLOSING, ReceivedData(imagine(ONE + CLOSING).data, "open")).complaints


def test_claims_happen_from_the_front() -> None:
    """On a connection that its sender broke, a later claim without an earlier one is found; any front is fine."""
    sent = ONE + TWO + HIDDEN
    for held, is_fine in (([], True), (["n/1"], True), (["n/1", "n/2"], True), (["n/2"], False), (["n/7"], False)):
        verdict = judge(sent, ReceivedData(b"", "open"), broken=True)
        verdict.check_held(held)
        assert bool(verdict.complaints) != is_fine, held
