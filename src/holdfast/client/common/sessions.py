"""The verbs that claim for a session, with all their options: written once, for the sessions of both clients."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic

from holdfast.client.common.claiming import AnyClaim, AnyClaims, ClaimingClient, GotClaim, GotClaims
from holdfast.client.values.options import OnWait
from holdfast.client.values.records import Metadata


class ClaimingSession(ABC, Generic[AnyClaim, AnyClaims, GotClaim, GotClaims]):
    """The part of a session that claims: what is claimed through it ends with it."""

    _claimer: ClaimingClient[AnyClaim, AnyClaims, GotClaim, GotClaims, Any, Any]

    @property
    @abstractmethod
    def session_id(self) -> str:
        """The session's id."""

    @abstractmethod
    def _adopt(self, got: GotClaim) -> GotClaim:
        """Remember a claim, so that it is not renewed after the session's end."""

    @abstractmethod
    def _adopt_all(self, got: GotClaims) -> GotClaims:
        """Remember several."""

    def claim(
        self,
        job_id: str,
        *,
        ttl: float | None = None,
        wait: float | None = None,
        owner: str | None = None,
        metadata: Metadata = None,
        labels: Mapping[str, str] | None = None,
        resume: bool = False,
        redo: bool = False,
        lock_delay: float = 0,
        on_wait: OnWait | None = None,
        on_lost: Callable[[AnyClaim], object] | None = None,
    ) -> GotClaim:
        """Claim a job for this session, as the client's `claim`."""
        got = self._claimer.claim(
            job_id,
            ttl=ttl,
            wait=wait,
            owner=owner,
            metadata=metadata,
            labels=labels,
            resume=resume,
            redo=redo,
            lock_delay=lock_delay,
            session=self.session_id,
            on_wait=on_wait,
            on_lost=on_lost,
        )
        return self._adopt(got)

    def claim_any(
        self,
        job_ids: Sequence[str],
        *,
        ttl: float | None = None,
        wait: float | None = None,
        owner: str | None = None,
        metadata: Metadata = None,
        labels: Mapping[str, str] | None = None,
        redo: bool = False,
        lock_delay: float = 0,
        on_wait: OnWait | None = None,
        on_lost: Callable[[AnyClaim], object] | None = None,
    ) -> GotClaim:
        """Claim the first free job of a list for this session, as the client's `claim_any`."""
        got = self._claimer.claim_any(
            job_ids,
            ttl=ttl,
            wait=wait,
            owner=owner,
            metadata=metadata,
            labels=labels,
            redo=redo,
            lock_delay=lock_delay,
            session=self.session_id,
            on_wait=on_wait,
            on_lost=on_lost,
        )
        return self._adopt(got)

    def claim_all(
        self,
        job_ids: Sequence[str],
        *,
        ttl: float | None = None,
        wait: float | None = None,
        owner: str | None = None,
        metadata: Metadata = None,
        labels: Mapping[str, str] | None = None,
        redo: bool = False,
        lock_delay: float = 0,
        on_wait: OnWait | None = None,
        on_lost: Callable[[AnyClaims], object] | None = None,
    ) -> GotClaims:
        """Claim every job of a list or none for this session, as the client's `claim_all`."""
        got = self._claimer.claim_all(
            job_ids,
            ttl=ttl,
            wait=wait,
            owner=owner,
            metadata=metadata,
            labels=labels,
            redo=redo,
            lock_delay=lock_delay,
            session=self.session_id,
            on_wait=on_wait,
            on_lost=on_lost,
        )
        return self._adopt_all(got)
