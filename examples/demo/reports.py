"""What an agent reports to the demonstration: one JSON object a line."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class Report:
    """Who says what of which job. `kind` is for the colours, and for whoever directs the story."""

    who: str
    kind: str
    text: str
    job: str = ""

    def line(self) -> bytes:
        return json.dumps(asdict(self)).encode() + b"\n"

    @classmethod
    def of(cls, line: bytes) -> Report:
        return cls(**json.loads(line))
