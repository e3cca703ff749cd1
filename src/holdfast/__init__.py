"""Holdfast gives every job one live owner.

The public names are loaded when first used, so that a command which needs one of them does not pay for the others.
"""

from importlib import import_module

# Said here and not imported: `typing` alone would cost `rlock` a quarter of the time that it may need to start.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from holdfast import fencing as fencing
    from holdfast.client._aclaim import AsyncClaim, AsyncClaims
    from holdfast.client._asession import AsyncSession
    from holdfast.client._async import AsyncHoldfast
    from holdfast.client._claim import Claim, Claims
    from holdfast.client._jobs import (
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
    from holdfast.client._options import ClaimAllOptions, ClaimAnyOptions, ClaimJobOptions, ClaimOptions
    from holdfast.client._records import (
        Happened,
        JobClaim,
        JobOwner,
        JobStatus,
        Metadata,
        OpenedSession,
        Place,
        Previous,
        SessionInfo,
    )
    from holdfast.client._session import Session
    from holdfast.client._sync import Holdfast
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
    "Happened",
    "Holdfast",
    "HoldfastError",
    "JobClaim",
    "JobDone",
    "JobHeld",
    "JobOwner",
    "JobStatus",
    "LeaseLost",
    "LeaseReleased",
    "Metadata",
    "NotAllowed",
    "NotInTime",
    "OpenedSession",
    "Place",
    "Previous",
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
    "AsyncClaim": "holdfast.client._aclaim",
    "AsyncClaims": "holdfast.client._aclaim",
    "AsyncSession": "holdfast.client._asession",
    "AsyncHoldfast": "holdfast.client._async",
    "Claim": "holdfast.client._claim",
    "Claims": "holdfast.client._claim",
    "claim": "holdfast.client._jobs",
    "claim_all": "holdfast.client._jobs",
    "claim_any": "holdfast.client._jobs",
    "claim_job": "holdfast.client._jobs",
    "exclusive": "holdfast.client._jobs",
    "get_job_owner": "holdfast.client._jobs",
    "heartbeat_job": "holdfast.client._jobs",
    "list_claimed_jobs": "holdfast.client._jobs",
    "release_job": "holdfast.client._jobs",
    "session": "holdfast.client._jobs",
    "ClaimAllOptions": "holdfast.client._options",
    "ClaimAnyOptions": "holdfast.client._options",
    "ClaimJobOptions": "holdfast.client._options",
    "ClaimOptions": "holdfast.client._options",
    "Happened": "holdfast.client._records",
    "JobClaim": "holdfast.client._records",
    "JobOwner": "holdfast.client._records",
    "JobStatus": "holdfast.client._records",
    "Metadata": "holdfast.client._records",
    "OpenedSession": "holdfast.client._records",
    "Place": "holdfast.client._records",
    "Previous": "holdfast.client._records",
    "SessionInfo": "holdfast.client._records",
    "Session": "holdfast.client._session",
    "Holdfast": "holdfast.client._sync",
    "CannotFence": "holdfast.errors",
    "Deadlock": "holdfast.errors",
    "HoldfastError": "holdfast.errors",
    "JobDone": "holdfast.errors",
    "JobHeld": "holdfast.errors",
    "LeaseLost": "holdfast.errors",
    "LeaseReleased": "holdfast.errors",
    "NotAllowed": "holdfast.errors",
    "NotInTime": "holdfast.errors",
    "Refused": "holdfast.errors",
    "ServerError": "holdfast.errors",
    "SettingsError": "holdfast.errors",
    "StaleToken": "holdfast.errors",
    "Unreachable": "holdfast.errors",
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
