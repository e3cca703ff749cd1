"""Everything that a user can write is text on every page: thirty ways to smuggle a script in, and none runs."""

from __future__ import annotations

import unicodedata

import pytest
from playwright.sync_api import Page, expect

from tests.browser.page_actions import ROWS, job_path, moment_path, row, sticks_out, until, wait_for_list
from tests.support import callers
from tests.support.api import Api, lock_path
from tests.support.chromium import Readers
from tests.support.pending import waiting
from tests.support.server import ServerProcess

RAN = "window.ran=1"
"""What each of them would do, if it ran. Some would ask by a dialog instead: that is seen as well."""
PAYLOADS = (
    f"<script>{RAN}</script>",
    f"<ScRiPt>{RAN}//",
    f"</script><script>{RAN}</script>",
    f"</title><script>{RAN}</script>",
    f"</textarea><script>{RAN}</script>",
    f"<img src=x onerror={RAN}>",
    f"<img/src=x/onerror={RAN}>",
    f"<svg/onload={RAN}>",
    f"<svg><script>{RAN}</script></svg>",
    f"<svg><animate onbegin={RAN} attributeName=x dur=1s>",
    f"<math><mtext></table><mglyph><style><img src onerror={RAN}>",
    f"<body onload={RAN}>",
    f"<details open ontoggle={RAN}>",
    f"<iframe srcdoc='<script>parent.{RAN[7:]}</script>'>",
    "<iframe src=javascript:parent.ran=1>",
    f"<object data='data:text/html,<script>{RAN}</script>'>",
    "<base href=//evil.example/>",
    "<meta http-equiv=refresh content='0;url=//evil.example'>",
    "<link rel=stylesheet href=//evil.example/a.css>",
    "<style>*{display:none!important}</style>",
    f"<form action=//evil.example><button autofocus onfocus={RAN}>",
    f'" onmouseover="{RAN}" x="',
    f"' onfocus='{RAN}' autofocus tabindex='1",
    f"`-{RAN}-`",
    f"javascript:{RAN}",
    f"JaVaScRiPt:{RAN}//",
    "{{constructor.constructor('window.ran=1')()}}{% raw %}",
    "${window.ran=1}<%= 7*7 %>#{7*7}",
    "\u202egnp.exe\u202c\u2066<b>\u2069 \U0001f4a3\ufdfd\u0489\u0489\u0489 " + "W" * 90,
    f"-->]]><!--><script>{RAN}</script>&lt;img src=x onerror={RAN}&gt;%3Cscript%3E",
)
NAMES_ARE = "job:"
"""A name may have nearly any character behind a scheme, but no blank and nothing that looks like one."""


def as_name(payload: str, number: int) -> str:
    """The payload as a name that the server takes."""
    printable = "".join(
        char for char in payload if not char.isspace() and unicodedata.category(char) not in {"Cf", "Cc"}
    )
    return unicodedata.normalize("NFC", f"{NAMES_ARE}{number:02}:{printable[:100]}")


NAMES = [as_name(payload, number) for number, payload in enumerate(PAYLOADS)]


@pytest.fixture(scope="module")
def written(server: ServerProcess) -> dict[str, str]:
    """Each payload in every field: name, owner, metadata, note, labels, reason, result, session, user agent."""
    alice, operator = Api.of(server, callers.ALICE), Api.of(server, callers.OPERATOR)
    leases: dict[str, str] = {}
    sessions = []
    for number, (name, payload) in enumerate(zip(NAMES, PAYLOADS, strict=True)):
        metadata = [f"{payload}={payload}", f'{{"{number}": {_json(payload)}}}', payload][number % 3]
        said = {
            "owner": payload[:128],
            "metadata": metadata,
            "labels": {f"k{number}": payload[:128]},
            "ttl_seconds": 600,
        }
        agent = payload.encode("ascii", "replace").decode()
        for end in ("ended", "revoked"):
            before = f"{NAMES_ARE}{end}:{name[len(NAMES_ARE) :]}"
            lease = alice.acquired(before, **said)["lease_id"]
            if end == "ended":
                alice.release(before, lease, outcome="done", remember_seconds=600, result=metadata)
            else:
                operator.revoke(before, reason=payload)
        answer = alice.post(f"{lock_path(name)}/acquire", said, headers={"User-Agent": agent})
        assert answer.json()["status"] == "acquired", answer
        leases[name] = answer.json()["lease_id"]
        assert alice.renew(name, leases[name], ttl_seconds=600, note=payload).status == 200
        sessions.append(alice.new_session(name=payload[:128], metadata=metadata, ttl_seconds=600)["session_id"])
    return {"session": sessions[0], **leases}


def _json(text: str) -> str:
    import json

    return json.dumps(text)


def test_there_are_thirty_payloads() -> None:
    """Thirty payloads, each another one."""
    assert len(set(PAYLOADS)) == len(set(NAMES)) == 30


def is_unharmed(page: Page) -> None:
    """Nothing ran, nothing was added, nothing sticks out, and the page looks as it should."""
    assert page.evaluate("window.ran ?? null") is None
    foreign = (
        "iframe, object, embed, base, style, meta[http-equiv], main img, main script:not([type='application/json'])"
    )
    assert page.locator(foreign).count() == 0
    assert page.locator("link[rel=stylesheet]").count() == 1
    assert page.locator("main form:not([action^='/'])").count() == 0
    assert (
        page.eval_on_selector_all(
            "main *",
            "all => all.filter((each) => /^on/.test([...each.attributes].map((one) => one.name).join(' '))).length",
        )
        == 0
    )
    links: list[str] = page.eval_on_selector_all(
        "a[href]", "all => all.map((each) => new URL(each.getAttribute('href'), location.href).href)"
    )
    assert [link for link in links if not link.startswith(("http://127.0.0.1", "https://"))] == []
    assert sticks_out(page) == []
    expect(page.locator(".top")).to_be_visible()


def test_list_runs_no_payload(readers: Readers, written: dict[str, str], server: ServerProcess) -> None:
    """In the list as it came, as it is drawn by scripts, and as it is told live; every row is as high as any other."""
    page = readers.open(callers.OPERATOR, "/", viewport={"width": 1280, "height": 1300})
    wait_for_list(page)
    for name in NAMES:
        expect(row(page, name)).to_be_visible()
    is_unharmed(page)
    heights = page.eval_on_selector_all(ROWS, "all => all.map((each) => each.getBoundingClientRect().height)")
    assert len(set(heights)) == 1, heights
    # Once more, while somebody looks: by way of the stream.
    alice = Api.of(server, callers.ALICE)
    for number, payload in enumerate(PAYLOADS):
        assert alice.renew(NAMES[number], written[NAMES[number]], ttl_seconds=600, note=f"live {payload}").status == 200
    last = row(page, NAMES[-1]).locator(".col-note")
    expect(last).to_contain_text("live -->")
    first = row(page, NAMES[0])
    first.hover()
    expect(first.locator(".col-owner bdi")).to_have_text(PAYLOADS[0])
    is_unharmed(page)


@pytest.mark.parametrize("part", range(3))
def test_job_pages_run_no_payload(readers: Readers, written: dict[str, str], server: ServerProcess, part: int) -> None:
    """On each job's page: owner, fields, line, why, timeline, forms; whether it is held, done or was revoked."""
    page = readers.new(callers.OPERATOR).new_page()
    bob = Api.of(server, callers.BOB)
    for number in range(part, len(PAYLOADS), 3):
        name = NAMES[number]
        with waiting(bob, name, owner=PAYLOADS[number][:128]):
            _visit(page, job_path(name))
        for end in ("ended", "revoked"):
            _visit(page, job_path(f"{NAMES_ARE}{end}:{name[len(NAMES_ARE) :]}"))


def _visit(page: Page, path: str) -> None:
    page.goto(path)
    expect(page.locator("h1")).to_contain_text(NAMES_ARE)
    for summary in page.locator("details.offer summary").all():
        summary.click()
    is_unharmed(page)


def test_other_views_run_no_payload(readers: Readers, written: dict[str, str], server: ServerProcess) -> None:
    """Sessions, waits, tokens, numbers, nodes, a moment, a search for it: text everywhere."""
    alice, bob = Api.of(server, callers.ALICE), Api.of(server, callers.BOB)
    owners = PAYLOADS[0][:128], PAYLOADS[7][:128]
    context = readers.new(callers.OPERATOR)
    with waiting(bob, NAMES[0], owner=owners[1]), waiting(alice, NAMES[7], owner=owners[0]):
        for path in (
            "/ui/waits",
            "/ui/sessions?token=alice",
            f"/ui/sessions/{written['session']}",
            "/ui/tokens",
            "/ui/metrics",
            "/ui/nodes",
            moment_path(0.5),
        ):
            page = context.new_page()
            page.goto(path)
            expect(page.locator("h1, .notice").first).to_be_attached()
            is_unharmed(page)
            page.close()


def test_addresses_run_no_payload(readers: Readers) -> None:
    """A search, a moment and a name that are nothing but a payload come back as text, also where they are refused."""
    from urllib.parse import quote

    readers.expect_trouble(r"status of (400|404|410)")
    page = readers.new(callers.OPERATOR).new_page()
    for payload in PAYLOADS:
        for path in (f"/?q={quote(payload)}", f"/?at={quote(payload)}", f"/ui/jobs/{quote(payload, safe='')}"):
            page.goto(path)
            assert page.evaluate("window.ran ?? null") is None
            assert page.locator("main img, main iframe, iframe, base, main style").count() == 0


def test_payload_text_arrives_unchanged(readers: Readers, written: dict[str, str]) -> None:
    """What is escaped is not lost: a reader sees what was written, sign by sign."""
    page = readers.open(callers.OPERATOR, job_path(NAMES[0]))
    expect(page.locator("#owner dd b bdi")).to_have_text(PAYLOADS[0])
    expect(page.locator("h1 bdi")).to_have_text(NAMES[0])
    until(lambda: PAYLOADS[0] in page.locator('[data-live="note"]').inner_text(), "the note is there")
