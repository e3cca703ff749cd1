"""What an operator asks of a server: tokens, health, state."""

from __future__ import annotations

from urllib.parse import quote

from holdfast.client._http import Transport
from holdfast.wire.messages import TokenMadeReply, TokenReply, TokensReply


def create_token(
    transport: Transport,
    name: str,
    *,
    scopes: list[str] | None = None,
    prefix: str | None = None,
    expires_in_seconds: int | None = None,
) -> TokenMadeReply:
    """Make a token; the answer is the only one that ever shows it."""
    wanted = {"name": name, "scopes": scopes, "prefix": prefix, "expires_in_seconds": expires_in_seconds}
    body = {key: value for key, value in wanted.items() if value is not None}
    return transport.call("POST", "/tokens", TokenMadeReply, body)


def list_tokens(transport: Transport) -> list[TokenReply]:
    """List the tokens, without the tokens."""
    return transport.call("GET", "/tokens", TokensReply).tokens


def revoke_token(transport: Transport, name: str) -> None:
    """Shut a token out."""
    transport.call("DELETE", f"/tokens/{quote(name, safe='')}", type(None))
