"""What a form on a job's page does: end its lease, reopen it, hand it over. Each with a reason.

A form says which lease its reader saw, by the fencing token. If another one lives by then, nothing is done and the page
is shown again: whoever ended a lease by a page that was an hour old would end another's. It also has a key of its own,
so that a form that is sent twice has one effect.

Nothing is awaited between the look at the lease and the decision, so what was checked holds for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.core.answers import HandedOver, OpenAgain, Released
from holdfast.core.commands import Reopen, Revoke, Transfer
from holdfast.core.state import EMPTY
from holdfast.core.values import OWNER_CHARS_MAX, REASON_CHARS_MAX
from holdfast.engine.ids import new_uuid
from holdfast.server.operations.parts import read_uuid
from holdfast.server.operations.reading import fingerprint
from holdfast.server.pages import site
from holdfast.server.pages.rooms.job import Tried, show
from holdfast.server.pages.views.offers import REOPEN, REVOKE, TRANSFER

if TYPE_CHECKING:
    from holdfast.core.values import Moment
    from holdfast.server.api import Api, Show
    from holdfast.server.operations.call import Call
    from holdfast.server.render import Answered

_CONFLICT, _UNPROCESSABLE = 409, 422
_CHANGED = "Nothing was done: this job has changed since you looked. What is so now stands below."
_SENT = "Nothing was done: this form was sent before, with other words. What came of that stands below."
_NO_REASON = f"Nothing was done: say why, in 1 to {REASON_CHARS_MAX} characters."
_NO_OWNER = f"Nothing was done: name the new owner, in 1 to {OWNER_CHARS_MAX} characters."


def revoke(api: Api, call: Call) -> None:
    """POST /ui/jobs/{name}/revoke."""
    reason = _reason(call)
    lease = api.engine.state.lease_of(call.item)
    mark = fingerprint(call.request, call.item, (REVOKE, reason))
    if _is_wrong(api, call, REVOKE, mark, token=None if lease is None else lease.token):
        return
    principal, key = call.caller.principal, _key(call)
    command = Revoke(name=call.item, principal=principal, reason=reason, key=key, fingerprint=mark)
    api.submit(call, command, {Released: _shows("revoked")})


def reopen(api: Api, call: Call) -> None:
    """POST /ui/jobs/{name}/reopen."""
    reason = _reason(call)
    done = api.engine.state.slots.get(call.item, EMPTY).done
    mark = fingerprint(call.request, call.item, (REOPEN, reason))
    if _is_wrong(api, call, REOPEN, mark, token=None if done is None else done.token):
        return
    principal, key = call.caller.principal, _key(call)
    command = Reopen(name=call.item, principal=principal, reason=reason, key=key, fingerprint=mark)
    api.submit(call, command, {OpenAgain: _shows("reopened")})


def transfer(api: Api, call: Call) -> None:
    """POST /ui/jobs/{name}/transfer, as an operator: the page knows no lease id, so it proves no claim."""
    reason, to_owner = _reason(call), call.body.get("to_owner", "").strip()
    lease = api.engine.state.lease_of(call.item)
    mark = fingerprint(call.request, call.item, (TRANSFER, to_owner, reason))
    if _is_wrong(api, call, TRANSFER, mark, token=None if lease is None else lease.token):
        return
    if not 0 < len(to_owner) <= OWNER_CHARS_MAX:
        show(api, call, Tried(TRANSFER, _NO_OWNER, _UNPROCESSABLE, reason, to_owner))
        return
    command = Transfer(
        name=call.item,
        principal=call.caller.principal,
        lease_id=None,
        new_lease_id=new_uuid(),
        to_owner=to_owner,
        key=_key(call),
        fingerprint=mark,
        reason=reason,
    )
    api.submit(call, command, {HandedOver: _shows("transferred")})


def _is_wrong(api: Api, call: Call, verb: str, mark: str, *, token: int | None) -> bool:
    """Show the page again, and tell so, if the form cannot be meant: without a reason, or for another lease.

    One that was sent before is decided: its key knows what became of it, if the rest of it is the same.
    """
    reason = _reason(call)
    sent = api.engine.state.memos.get((call.caller.principal, _key(call)))
    if not 0 < len(reason) <= REASON_CHARS_MAX:
        problem, status = _NO_REASON, _UNPROCESSABLE
    elif sent is not None and sent.fingerprint != mark:
        problem, status = _SENT, _CONFLICT
    elif sent is None and str(token) != call.body.get("token"):
        problem, status = _CHANGED, _CONFLICT
    else:
        return False
    show(api, call, Tried(verb, problem, status, reason, call.body.get("to_owner", "").strip()))
    return True


def _reason(call: Call) -> str:
    reason: str = call.body.get("reason", "").strip()
    return reason


def _key(call: Call) -> str:
    """Return the key of a form. It is the page's own: no program's can be the same."""
    return f"page {read_uuid(call.body.get('key', ''), 'key')}"


def _shows(did: str) -> Show:
    """Lead back to the job's page, which says what was done. To load that again does nothing."""

    def shown(_api: Api, call: Call, _outcome: object, _now: Moment) -> Answered:
        path = site.path_of(call.item)
        return site.redirect(f"{path}{'&' if '?' in path else '?'}did={did}")

    return shown
