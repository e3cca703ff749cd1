"""Holdfast gives every job one live owner.

The public names are loaded when first used, so that a command which needs one of them does not pay for the others.
"""

from importlib import import_module

# Said here and not imported: `typing` alone would cost `rlock` a quarter of the time that it may need to start.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from holdfast import fencing as fencing
    from holdfast.client.coroutines.claim import AsyncClaim, AsyncClaims
    from holdfast.client.coroutines.client import AsyncHoldfast
    from holdfast.client.coroutines.session import AsyncSession
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
    from holdfast.client.threads.claim import Claim, Claims
    from holdfast.client.threads.client import Holdfast
    from holdfast.client.threads.session import Session
    from holdfast.client.values.moments import JobsThen, JobThen
    from holdfast.client.values.options import ClaimAllOptions, ClaimAnyOptions, ClaimJobOptions, ClaimOptions
    from holdfast.client.values.records import (
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
    "JobThen",
    "JobsThen",
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
    "AsyncClaim": "holdfast.client.coroutines.claim",
    "AsyncClaims": "holdfast.client.coroutines.claim",
    "AsyncSession": "holdfast.client.coroutines.session",
    "AsyncHoldfast": "holdfast.client.coroutines.client",
    "Claim": "holdfast.client.threads.claim",
    "Claims": "holdfast.client.threads.claim",
    "claim": "holdfast.client.functions",
    "claim_all": "holdfast.client.functions",
    "claim_any": "holdfast.client.functions",
    "claim_job": "holdfast.client.functions",
    "exclusive": "holdfast.client.functions",
    "get_job_owner": "holdfast.client.functions",
    "heartbeat_job": "holdfast.client.functions",
    "list_claimed_jobs": "holdfast.client.functions",
    "release_job": "holdfast.client.functions",
    "session": "holdfast.client.functions",
    "JobThen": "holdfast.client.values.moments",
    "JobsThen": "holdfast.client.values.moments",
    "ClaimAllOptions": "holdfast.client.values.options",
    "ClaimAnyOptions": "holdfast.client.values.options",
    "ClaimJobOptions": "holdfast.client.values.options",
    "ClaimOptions": "holdfast.client.values.options",
    "Happened": "holdfast.client.values.records",
    "JobClaim": "holdfast.client.values.records",
    "JobOwner": "holdfast.client.values.records",
    "JobStatus": "holdfast.client.values.records",
    "Metadata": "holdfast.client.values.records",
    "OpenedSession": "holdfast.client.values.records",
    "Place": "holdfast.client.values.records",
    "Previous": "holdfast.client.values.records",
    "SessionInfo": "holdfast.client.values.records",
    "Session": "holdfast.client.threads.session",
    "Holdfast": "holdfast.client.threads.client",
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
