"""How many streams may be open at the same time, and for whom."""

import pytest

from holdfast.api.streams import OpenStreams
from holdfast.wire.problems import Problem


def test_a_session_has_half_of_the_streams_of_its_token() -> None:
    """One run's secret cannot take the streams of its siblings, and a token has no more than its limit."""
    streams = OpenStreams(4)
    streams.add("ana", "s1")
    streams.add("ana", "s1")
    with pytest.raises(
        Problem, match=r"session may have 2 watches open, half of what its token may.*watches_per_principal_max"
    ):
        streams.add("ana", "s1")
    streams.add("ana", None)
    streams.add("ana", "s2")
    with pytest.raises(Problem, match="token may have 4 watches open"):
        streams.add("ana", None)
    streams.add("ben", None)
    streams.remove("ana", "s1")
    streams.add("ana", "s1")
    for session in ("s1", "s1", "s2", None):
        streams.remove("ana", session)
    for _ in range(4):
        streams.add("ana", None)
