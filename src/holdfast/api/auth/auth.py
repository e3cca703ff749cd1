"""Who asks: bearer tokens of settings and journal, secrets of sessions and claims, the cookie of the page.

What is known of a token is read from the engine's state at each request, so a revoked one is out immediately.

The last use of each token is kept to the minute. Once a minute, and at an orderly stop, one record `TokensUsed` has the
tokens whose minute has changed. A session's secret counts for the token that opened the session.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

import msgspec

from holdfast.api.auth.secrets import (
    CLAIM_PREFIX,
    CLAIM_SECRET_CHARS_MAX,
    SECRET_CHARS_MAX,
    SESSION_PREFIX,
    AuthorityKey,
    ClaimId,
    Cookie,
    claim_in,
    claim_secret,
    cookie_in,
    digest,
    is_claim_secret_of_ours,
    is_mistyped,
    is_ours,
    is_placeholder,
    is_valid,
    secrets_equal,
)
from holdfast.core.commands import RecordUses
from holdfast.core.names import has_dot_segment
from holdfast.core.outcomes import UsesRecorded
from holdfast.core.state import State
from holdfast.core.values import SESSION_NAME_CHARS_MAX, AccessToken, Instant
from holdfast.engine.engine import Engine
from holdfast.http.messages import COOKIE
from holdfast.wire.problems import Problem

SCOPES = ("read", "claim", "admin")
TOKEN_CHARS_MIN = 16
CACHED_MAX = 10_000  # Cached digests and callers; what they say is checked against the state each time.
PERIOD_MS = 60_000
MINUTE_MS = 60_000
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")
_BEARER = b"Bearer "


OWN_CLAIM_ONLY = (
    "This is the secret of a claim: it can only look at, renew and release what that claim holds."
    " A command that needs more gets its caller's access token by `holdfast run --keep-token`."
)


def in_order(scopes: Iterable[str]) -> list[str]:
    given = frozenset(scopes)
    return [scope for scope in SCOPES if scope in given]


def own_scope(scope: str) -> str:
    return f"own {scope}"


class WrongTokenError(Problem):
    """The token is unknown or no longer valid. `refusals.WrongTokens` counts these errors."""

    def __init__(self, details: str) -> None:
        super().__init__("authentication_failed", details)


class Caller(msgspec.Struct, frozen=True):
    principal: str
    scopes: frozenset[str]
    prefix: str | None = None
    session: str | None = None
    digest: str = ""  # Of the principal's current token: the secrets of its sessions depend on it (S5).
    claim: ClaimId | None = None  # Whose secret was used: it has the scopes of `own_scope`, and always a prefix.
    cookie: Cookie | None = None  # Of the page, if it was used: `origins` says what else it needs.

    @property
    def secret(self) -> str | None:
        """What was shown in place of the token itself, for people; None if it was the token."""
        if self.claim is not None:
            return "a claim's secret"
        if self.cookie is not None:
            return "signed in at the page"
        return None if self.session is None else "a session's secret"

    @property
    def share(self) -> str | None:
        """What may use at most half of its principal's limit: the session or the claim whose secret was used."""
        return self.session if self.claim is None else self.claim.grant

    def may_grant(self, scopes: Iterable[str], prefix: str | None) -> bool:
        if not self.scopes.issuperset(scopes):
            return False
        return self.prefix is None or (prefix is not None and prefix.startswith(self.prefix))

    def require_scope(self, scope: str) -> None:
        if scope in self.scopes:
            return
        if self.claim is not None:
            raise Problem("forbidden", OWN_CLAIM_ONLY)
        have = "+".join(in_order(self.scopes))
        raise Problem("forbidden", f"This needs an access token with the scope {scope!r}; this one has {have}.")

    def require_within_prefix(self, name: str) -> None:
        if self.prefix is not None and not name.startswith(self.prefix):
            text = f"This access token may only be used for names that start with {self.prefix!r}."
            raise Problem("forbidden", f"{text} Take such a name, or an access token that has another prefix or none.")

    def require_touch(self, name: str) -> None:
        """Raise unless the caller may touch the name: with a prefix, none that could lead out of it (N4)."""
        if self.prefix is None:
            return
        self.require_within_prefix(name)
        if has_dot_segment(name):
            text = "This access token has a prefix, so it touches no name with a segment '.' or '..', escaped or not."
            raise Problem("forbidden", f"{text} Take a name without one.")


class BadTokenError(ValueError):
    """A static token cannot be used; the text says which and why, without showing it."""


class StaticTokens:
    def __init__(self, entries: Iterable[str]) -> None:
        self.callers: dict[str, Caller] = {}
        self._by_name: dict[str, Caller] = {}
        self.chars_max = 0
        for number, entry in enumerate(entries, 1):
            name, scopes, token = _read_static(entry, number)
            token_digest = digest(token)
            if name in self._by_name:
                raise BadTokenError(f"static access token {number}: the name {name!r} stands twice")
            if token_digest in self.callers:
                raise BadTokenError(f"static access token {number} ({name!r}): the same token stands twice")
            self.callers[token_digest] = self._by_name[name] = Caller(name, scopes, digest=token_digest)
            self.chars_max = max(self.chars_max, len(token))

    @classmethod
    def parse(cls, text: str) -> StaticTokens:
        return cls(entries_of(text))

    def of(self, principal: str) -> Caller | None:
        return self._by_name.get(principal)


def entries_of(text: str) -> list[str]:
    lines = (line for line in text.splitlines() if not line.lstrip().startswith("#"))
    return [entry.strip() for line in lines for entry in line.split(",") if entry.strip()]


def _read_static(entry: str, number: int) -> tuple[str, frozenset[str], str]:
    name, colon, rest = entry.partition(":")
    token, _, scope_text = rest.partition(":")
    if not colon or not NAME.fullmatch(name):
        raise BadTokenError(f"static access token {number}: write it as name:token or name:token:read+claim+admin")
    if len(token) < TOKEN_CHARS_MIN or any(char.isspace() for char in token) or not token.isprintable():
        raise BadTokenError(
            f"static access token {number} ({name!r}) needs {TOKEN_CHARS_MIN} characters or more, no blank, ':' or ','"
        )
    if is_placeholder(token):
        raise BadTokenError(
            f"static access token {number} ({name!r}) is a placeholder: everybody can guess it. Make a random one:"
            " openssl rand -hex 24"
        )
    scopes = frozenset(scope_text.split("+")) if scope_text else frozenset({"read", "claim"})
    if not scopes <= set(SCOPES):
        raise BadTokenError(
            f"static access token {number} ({name!r}): the scopes after the second ':' are some of {'+'.join(SCOPES)}"
        )
    return name, scopes, token


class _Run(msgspec.Struct, frozen=True):
    session_id: str
    salt: str
    owner: Caller
    caller: Caller


class Auth:
    def __init__(self, static: StaticTokens, key: AuthorityKey) -> None:
        self.static = static
        self.key = key
        self._header_bytes_max = len(_BEARER) + max(SECRET_CHARS_MAX, CLAIM_SECRET_CHARS_MAX, static.chars_max)
        self.static_by_header: dict[bytes | None, Caller] = {}  # Right ones; only a restart changes static tokens.
        self._digests: dict[bytes, str] = {}
        self._callers: dict[str, tuple[AccessToken, Caller]] = {}
        self._runs: dict[bytes, _Run] = {}

    def identify(self, authorization: bytes | None, state: State, wall_ms: int) -> Caller:
        token_digest = self._digests.get(authorization) if authorization is not None else None
        if token_digest is not None:
            caller = self.by_digest(token_digest, state, wall_ms)
            if caller is not None:
                return caller
        run = self._runs.get(authorization) if authorization is not None else None
        if run is not None:
            caller = self._seen_before(run, state, wall_ms)
            if caller is not None:
                return caller
        if authorization is not None and authorization.startswith(COOKIE):
            return self._by_cookie(authorization[len(COOKIE) :].decode("latin-1"), state, wall_ms)
        if authorization is None or not authorization.startswith(_BEARER):
            text = "Send the header 'Authorization: Bearer ACCESS_TOKEN', with the first word written so."
            raise Problem("authentication_required", text)
        if len(authorization) > self._header_bytes_max:
            # Longer than any token: it need not be hashed to know that.
            raise WrongTokenError("This server does not know the access token: it is longer than any of ours.")
        token = authorization[len(_BEARER) :].decode("latin-1")
        if token.startswith(CLAIM_PREFIX):
            return self._by_claim(token, state, wall_ms)
        if token.startswith(SESSION_PREFIX):
            return self._by_session(authorization, token, state, wall_ms)
        if is_mistyped(token):
            raise WrongTokenError("The access token is mistyped: its checksum does not match.")
        token_digest = digest(token)
        caller = self.by_digest(token_digest, state, wall_ms)
        if caller is None:
            raise WrongTokenError(
                "This server does not know the access token: it is another server's, was revoked, or has expired."
            )
        if token_digest in self.static.callers:
            self.static_by_header[authorization] = caller
        if len(self._digests) >= CACHED_MAX:
            self._digests.clear()
        self._digests[authorization] = token_digest
        return caller

    def by_digest(self, token_digest: str, state: State, wall_ms: int) -> Caller | None:
        caller = self.static.callers.get(token_digest)
        if caller is not None:
            return caller
        token = state.index.token_by_digest.get(token_digest)
        if token is None or (token.expires_wall_ms is not None and token.expires_wall_ms <= wall_ms):
            return None
        cached = self._callers.get(token_digest)
        if cached is None or cached[0] is not token:
            if self.static.of(token.name) is not None:
                # Hidden: the settings gave its name to another. It is looked at here, where nobody pays who is let in.
                return None
            if len(self._callers) >= CACHED_MAX:
                self._callers.clear()
            cached = (token, Caller(token.name, frozenset(token.scopes), token.prefix, digest=token_digest))
            self._callers[token_digest] = cached
        return cached[1]

    def hidden(self, state: State) -> list[str]:
        return [name for name in state.tokens if self.static.of(name) is not None]

    def _by_session(self, authorization: bytes, secret: str, state: State, wall_ms: int) -> Caller:
        session_id = self.key.session_id_in(secret)
        session = None if session_id is None else state.sessions.get(session_id)
        if session_id is None or session is None:
            if session_id is None or not self.key.is_ours(secret, session_id):
                raise WrongTokenError("The session secret is not one of ours.")
            raise Problem("session_expired", "The session of this secret is over: open a new one with POST /sessions.")
        owner = self._by_principal(session.principal, state, wall_ms)
        digest_now = "" if owner is None else owner.digest
        if owner is None or not secrets_equal(self.key.session_secret(session, digest_now), secret):
            if not self.key.is_ours(secret, session_id):
                raise WrongTokenError("The session secret is not one of ours.")
            raise Problem(
                "authentication_failed",
                "The access token of this session was revoked, replaced or has expired, and the secret with it."
                " With the new token of that name, POST /sessions/{id}/secret gives the new secret.",
            )
        caller = Caller(owner.principal, owner.scopes & {"read", "claim"}, owner.prefix, session_id, owner.digest)
        if len(self._runs) >= CACHED_MAX:
            self._runs.clear()
        self._runs[authorization] = _Run(session_id, session.salt, owner, caller)
        return caller

    def _seen_before(self, run: _Run, state: State, wall_ms: int) -> Caller | None:
        session = state.sessions.get(run.session_id)
        if session is None or session.salt != run.salt:
            return None
        return run.caller if self._by_principal(session.principal, state, wall_ms) is run.owner else None

    def _by_claim(self, secret: str, state: State, wall_ms: int) -> Caller:
        claim = claim_in(secret)
        owner = None if claim is None else self._by_principal(claim.principal, state, wall_ms)
        if claim is None:
            raise WrongTokenError("The claim's secret is not one of ours.")
        if owner is None or not secrets_equal(claim_secret(self.key, claim, owner.digest), secret):
            if not is_claim_secret_of_ours(self.key, secret, claim):
                raise WrongTokenError("The claim's secret is not one of ours.")
            raise Problem(
                "authentication_failed",
                "The access token of this claim was revoked, replaced or has expired, and the claim's secret with it."
                " A run that has the new token goes on; only note, heartbeat and release from inside of it are over.",
            )
        scopes = frozenset(own_scope(scope) for scope in owner.scopes)
        # The prefix makes `ApiService.name_for` look closer at each name: no other caller pays for that.
        return Caller(owner.principal, scopes, owner.prefix or "", digest=owner.digest, claim=claim)

    def _by_cookie(self, shown: str, state: State, wall_ms: int) -> Caller:
        """Return who signed in. A cookie that is none of ours is no guess at one: it may be another server's."""
        cookies = ((value, cookie_in(value)) for value in shown.split(" "))
        ours = ((value, cookie) for value, cookie in cookies if cookie is not None and is_ours(self.key, value, cookie))
        value, cookie = next(ours, ("", None))
        if cookie is None:
            raise Problem("authentication_required", "Nobody is signed in: the cookie is none of this server's.")
        owner = self._by_principal(cookie.principal, state, wall_ms)
        if owner is None or not is_valid(self.key, value, cookie, owner.digest):
            text = "You are signed out: the access token of your sign-in was revoked, replaced or has expired."
            raise Problem("authentication_required", text)
        if cookie.is_from_the_future(wall_ms):
            text = "You are signed out: the server's clock was ahead when you signed in, and was set back."
            raise Problem("authentication_required", text)
        if cookie.is_expired(wall_ms):
            raise Problem("authentication_required", "You are signed out: your sign-in was not used for 12 hours.")
        return msgspec.structs.replace(owner, cookie=cookie)

    def _by_principal(self, principal: str, state: State, wall_ms: int) -> Caller | None:
        caller = self.static.of(principal)
        if caller is not None:
            return caller
        token = state.tokens.get(principal)
        return None if token is None else self.by_digest(token.digest, state, wall_ms)


def check_token_name(name: str) -> None:
    if not NAME.fullmatch(name) or len(name) > SESSION_NAME_CHARS_MAX:
        raise Problem(
            "invalid_input",
            "An access token's name has 1 to 64 letters, digits, '.', '_', '@', '-' and starts with a letter or digit.",
        )


class TokenUses:
    def __init__(self, engine: Engine, static: StaticTokens) -> None:
        self.seen: dict[str, int] = {}  # The wall time of each token's last use, by name. `ApiService.admit` writes it.
        self._engine = engine
        self._static = frozenset(caller.principal for caller in static.callers.values())
        self._next_ms = engine.clock.monotonic_ms() + PERIOD_MS
        self._settings_may_have_changed = True

    def last_of(self, name: str, state: State) -> int | None:
        seen = self.seen.get(name)
        if seen is not None and self._is_of_current_token(name, seen, state):
            return _minute_of(seen)
        return state.last_used.get(name)

    def tick(self, now_ms: int) -> None:
        if now_ms >= self._next_ms:
            self._next_ms = now_ms + PERIOD_MS
            self.write()

    def write(self) -> None:
        uses = tuple(self._uses(self._engine.state))
        written = self.seen.copy()
        self.seen.clear()

        def on_written(outcome: object, _: Instant) -> None:
            if not isinstance(outcome, UsesRecorded):
                # Nothing was written. It is tried again in a minute, unless the token is used meanwhile.
                self.seen.update({name: wall_ms for name, wall_ms in written.items() if name not in self.seen})

        if uses:
            self._engine.submit(RecordUses(uses=uses), on_written)

    def _uses(self, state: State) -> Iterator[tuple[str, int]]:
        for name, seen in self.seen.items():
            if self._is_of_current_token(name, seen, state):
                yield name, _minute_of(seen)
        if self._settings_may_have_changed:
            # Made tokens take what is known of them along. Static ones go with a restart, and no record tells of it.
            self._settings_may_have_changed = False
            for name in state.last_used:
                if name not in self._static and name not in state.tokens:
                    yield name, 0

    def _is_of_current_token(self, name: str, seen: int, state: State) -> bool:
        if name in self._static:
            return True
        token = state.tokens.get(name)
        return token is not None and seen >= token.made_wall_ms


def _minute_of(wall_ms: int) -> int:
    return wall_ms - wall_ms % MINUTE_MS
