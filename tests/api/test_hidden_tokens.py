"""Who has the places for tokens: a name that is static now, and an operator that is confined to a prefix."""

from __future__ import annotations

from pathlib import Path

from tests.support import callers
from tests.support.api import Api
from tests.support.checks import refused
from tests.support.server import ServerProcess

STATIC = "dora-has-a-static-token-now"


def _made(operator: Api, name: str, **fields: object) -> Api:
    answer = operator.post("/tokens", {"name": name, **fields})
    assert answer.status == 201, answer
    return Api(operator.host, operator.port, answer.json()["token"])


def test_token_hidden_by_static_token_is_rejected(tmp_path: Path) -> None:
    """S5: a principal has one token. The made one is not let in, is told at the start, and can be revoked alone."""
    with ServerProcess.start(tmp_path / "data", tokens=callers.TOKENS) as server:
        token = _made(Api.of(server, callers.OPERATOR), "dora").token
        assert Api.of(server, token).acquire("before").status == 200
    with ServerProcess.start(tmp_path / "data", tokens=f"{callers.TOKENS},dora:{STATIC}") as server:
        operator, dora = Api.of(server, callers.OPERATOR), Api.of(server, STATIC)
        refused(Api.of(server, token).status("before"), 401, "authentication_failed")
        session = dora.new_session()
        assert operator.delete("/tokens/dora").status == 204
        assert Api.of(server, session["session_secret"]).status("before").status == 200, "the static one's lives on"
        refused(operator.delete("/tokens/dora"), 409, "conflict")
        assert server.terminate() == 0
        assert server.log.count("are not let in: dora. Revoke them") == 1
    with ServerProcess.start(tmp_path / "data", tokens=callers.TOKENS) as server:
        refused(Api.of(server, token).status("before"), 401, "authentication_failed")
        assert server.terminate() == 0
        assert "are not let in" not in server.log


def test_confined_operator_may_use_half_of_the_tokens(tmp_path: Path) -> None:
    """House rule 10: within one prefix operators make half of tokens_max, also if they make operators to make more."""
    with ServerProcess.start(tmp_path / "data", tokens=callers.TOKENS, settings={"tokens_max": 8}) as server:
        operator = Api.of(server, callers.OPERATOR)
        scopes = ["read", "claim", "admin"]
        admin = _made(operator, "admin", scopes=scopes, prefix="team/")
        deputy = _made(admin, "deputy", scopes=scopes, prefix="team/\U0010ffff/")
        for number in range(2):
            _made(deputy, f"worker-{number}")
        answer = refused(admin.post("/tokens", {"name": "more"}), 429, "quota_exceeded")
        assert "half of tokens_max" in answer["details"]
        refused(deputy.post("/tokens", {"name": "more"}), 429, "quota_exceeded")
        assert admin.delete("/tokens/worker-0").status == 204
        _made(admin, "again")
        for number in range(4):
            _made(operator, f"other-{number}")
        refused(operator.post("/tokens", {"name": "last"}), 429, "quota_exceeded")
