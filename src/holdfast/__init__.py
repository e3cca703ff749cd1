"""Holdfast gives every job one live owner.

The public names are loaded when first used, so that a command which needs one of them does not pay for the others.
"""

from importlib import import_module

# `typing` would cost `rlock` a quarter of its time to start.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from holdfast import fencing as fencing
    from holdfast.client.aio import AsyncClaim, AsyncClaims, AsyncHoldfast, AsyncSession
    from holdfast.client.functions import (
        claim,
        claim_all,
        claim_any,
        claim_job,
        exclusive,
        get_job_owner,
        heartbeat_job,
        list_claimed_jobs,
        release_job,
        session,
    )
    from holdfast.client.options import ClaimAllOptions, ClaimAnyOptions, ClaimJobOptions, ClaimOptions
    from holdfast.client.records import (
        JobClaim,
        JobEvent,
        JobOwner,
        JobStatus,
        Metadata,
        OpenedSession,
        PastJobOwner,
        PastJobOwners,
        Previous,
        QueuePosition,
        SessionInfo,
    )
    from holdfast.client.sync import Claim, Claims, Holdfast, Session
    from holdfast.errors import (
        CannotFence,
        Deadlock,
        HoldfastError,
        JobDone,
        JobHeld,
        LeaseLost,
        LeaseReleased,
        NotAllowed,
        NotInTime,
        Refused,
        ServerError,
        SettingsError,
        StaleToken,
        Unreachable,
    )

__all__ = [
    "AsyncClaim",
    "AsyncClaims",
    "AsyncHoldfast",
    "AsyncSession",
    "CannotFence",
    "Claim",
    "ClaimAllOptions",
    "ClaimAnyOptions",
    "ClaimJobOptions",
    "ClaimOptions",
    "Claims",
    "Deadlock",
    "Holdfast",
    "HoldfastError",
    "JobClaim",
    "JobDone",
    "JobEvent",
    "JobHeld",
    "JobOwner",
    "JobStatus",
    "LeaseLost",
    "LeaseReleased",
    "Metadata",
    "NotAllowed",
    "NotInTime",
    "OpenedSession",
    "PastJobOwner",
    "PastJobOwners",
    "Previous",
    "QueuePosition",
    "Refused",
    "ServerError",
    "Session",
    "SessionInfo",
    "SettingsError",
    "StaleToken",
    "Unreachable",
    "__version__",
    "claim",
    "claim_all",
    "claim_any",
    "claim_job",
    "exclusive",
    "get_job_owner",
    "heartbeat_job",
    "list_claimed_jobs",
    "release_job",
    "session",
]

__version__ = "0.2.0.dev0"

# Each public name and the module it lives in; a name belongs here and in __all__, and a test compares the two.
_HOMES: dict[str, str] = {
    name: f"holdfast.{module}"
    for module, names in {
        "client.aio": "AsyncClaim AsyncClaims AsyncHoldfast AsyncSession",
        "client.functions": (
            "claim claim_all claim_any claim_job exclusive get_job_owner heartbeat_job list_claimed_jobs "
            "release_job session"
        ),
        "client.options": "ClaimAllOptions ClaimAnyOptions ClaimJobOptions ClaimOptions",
        "client.records": (
            "JobClaim JobEvent JobOwner JobStatus Metadata OpenedSession PastJobOwner PastJobOwners Previous "
            "QueuePosition SessionInfo"
        ),
        "client.sync": "Claim Claims Holdfast Session",
        "errors": (
            "CannotFence Deadlock HoldfastError JobDone JobHeld LeaseLost LeaseReleased NotAllowed NotInTime "
            "Refused ServerError SettingsError StaleToken Unreachable"
        ),
    }.items()
    for name in names.split()
}


if not TYPE_CHECKING:  # A type checker that saw this would take every misspelt name for an object.

    def __getattr__(name: str) -> object:
        if name == "fencing":
            return import_module("holdfast.fencing")
        if name not in _HOMES:
            message = f"module {__name__!r} has no attribute {name!r}"
            raise AttributeError(message)
        value: object = getattr(import_module(_HOMES[name]), name)
        globals()[name] = value  # The next use finds it without coming back here.
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
