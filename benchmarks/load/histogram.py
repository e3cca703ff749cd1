"""Latencies, counted in buckets: exact to 1 µs below a millisecond, and to a five hundredth above."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

_EXACT_BITS = 10
_EXACT_US = 1 << _EXACT_BITS
_STEPS = _EXACT_US // 2
"""Buckets for each doubling beyond what is exact."""
US_MAX = (1 << 27) - 1
"""Two minutes. What takes longer is counted as that long; the worst is kept as it was."""


def bucket_of(us: int) -> int:
    """Return the bucket that a latency falls into."""
    if us < _EXACT_US:
        return max(us, 0)
    us = min(us, US_MAX)
    shift = us.bit_length() - _EXACT_BITS
    return shift * _STEPS + (us >> shift)


def lowest_us(bucket: int) -> int:
    """Return the least latency that falls into a bucket."""
    if bucket < _EXACT_US:
        return bucket
    shift = bucket // _STEPS - 1
    return (bucket - shift * _STEPS) << shift


BUCKETS = bucket_of(US_MAX) + 1


class Histogram:
    """How often each latency was seen."""

    def __init__(self) -> None:
        self.counts = [0] * BUCKETS
        self.worst_us = 0

    def add(self, us: int) -> None:
        self.counts[bucket_of(us)] += 1
        self.worst_us = max(self.worst_us, us)

    def merge(self, other: Histogram) -> None:
        """Take in what another one counted."""
        self.counts = [mine + theirs for mine, theirs in zip(self.counts, other.counts, strict=True)]
        self.worst_us = max(self.worst_us, other.worst_us)

    @property
    def total(self) -> int:
        return sum(self.counts)

    def percentile_ms(self, percent: float) -> float:
        """Return the latency that so many in a hundred do not exceed (nearest rank); 0 if nothing was counted."""
        rank = max(1, -(-self.total * percent // 100))
        seen = 0
        for bucket, count in enumerate(self.counts):
            seen += count
            if count and seen >= rank:
                return lowest_us(bucket) / 1_000
        return 0.0

    @property
    def worst_ms(self) -> float:
        return self.worst_us / 1_000

    def as_dict(self) -> dict[str, object]:
        """Return it for JSON, without the empty buckets."""
        return {
            "counts": {bucket: count for bucket, count in enumerate(self.counts) if count},
            "worst_us": self.worst_us,
        }

    @classmethod
    def from_dict(cls, fields: Mapping[str, object]) -> Histogram:
        found = cls()
        counts, worst = fields["counts"], fields["worst_us"]
        if not isinstance(counts, dict) or not isinstance(worst, int):
            raise TypeError("this is no histogram")
        for bucket, count in counts.items():
            found.counts[int(bucket)] = count
        found.worst_us = worst
        return found
