"""The backlog: fourteen issues, what an agent does for each, and what goes wrong in between."""

from __future__ import annotations

from dataclasses import dataclass

AGENTS = ("ana", "ben", "cleo", "dan", "eve")


@dataclass(frozen=True)
class Issue:
    """One job. `steps` are also the notes that its agent leaves, so that a successor knows where to go on."""

    job: str
    title: str
    steps: tuple[str, ...]
    result: str
    needs: tuple[str, ...] = ()
    """Other jobs that it has to hold meanwhile, in the order in which its agent asks for them."""
    is_awaited: bool = False
    """Its agent keeps what it needs until somebody stands in line for that: so that the two meet, each time."""
    is_pushed: bool = False
    """Whether its result is a commit, which is pushed to the branch main."""
    first_try: tuple[str, ...] = ()
    """What the first agent does in place of the steps. It gets no further: it is killed, or stopped by the operator."""


RACE = (
    Issue("issue-101", "login fails after midnight", ("found it: a time zone", "tests pass"), "pull request 201"),
    Issue("issue-102", "dark mode flickers", ("one CSS rule too many",), "pull request 202"),
    Issue("issue-103", "the export loses umlauts", ("it opens the file as ASCII",), "pull request 203"),
    Issue("issue-104", "the search is slow", ("an index was missing",), "pull request 204"),
    Issue("issue-105", "a typo on the start page", ("'teh' is 'the' now",), "pull request 205"),
)
STAGING = "staging"
LINE = (
    Issue("issue-106", "payments time out", ("tried on staging",), "pull request 206", needs=(STAGING,)),
    Issue("issue-107", "large uploads fail", ("tried on staging",), "pull request 207", needs=(STAGING,)),
    Issue("issue-108", "mails are sent twice", ("tried on staging",), "pull request 208", needs=(STAGING,)),
)
CRASH = Issue(
    "issue-109",
    "move the sessions to the new table",
    ("new table made", "rows 1 to 40 of 100 copied", "rows 41 to 100 copied"),
    "pull request 209",
    first_try=("new table made", "rows 1 to 40 of 100 copied"),
)
SCHEMA, API = "schema", "api"
CYCLE = (
    Issue("issue-110", "rename user to account", ("renamed in both",), "pull request 210", needs=(SCHEMA, API)),
    Issue("issue-111", "page the list of users", ("paged in both",), "pull request 211", needs=(API, SCHEMA)),
)
REVOKE = Issue(
    "issue-112",
    "the tests are red",
    ("the cause is a stale fixture", "fixture repaired, tests are green"),
    "pull request 212",
    first_try=("deleting the tests that fail",),
)
WHY_REVOKED = "do not delete tests"
PUSH = "push-main"
"""The job that the rules of the guard name for a push to main."""
RELEASE = (
    Issue(
        "issue-113",
        "release 2.4, no pushes to main please",
        ("2.4 is built", "2.4 is tested"),
        "release 2.4",
        needs=(PUSH,),
        is_awaited=True,
    ),
    Issue("issue-114", "the changelog lacks a line", ("line written",), "a commit on main", is_pushed=True),
)

ISSUES = {issue.job: issue for issue in (*RACE, *LINE, CRASH, *CYCLE, REVOKE, *RELEASE)}
PUSHED = tuple(issue.job for issue in RELEASE if issue.is_pushed)
RESOURCES = (STAGING, SCHEMA, API, PUSH)
"""Jobs that are held for a while and given back, and never done."""
