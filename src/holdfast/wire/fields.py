"""The kinds of values that the fields of requests and replies have, each with what the OpenAPI document says of it."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

U32 = Annotated[int, Meta(ge=0, le=2**32 - 1)]
Uuid = Annotated[str, Meta(description="A UUID.", extra_json_schema={"format": "uuid"})]
Time = Annotated[str, Meta(description="RFC 3339, UTC. For people; programs use the *_ms fields.")]
Millis = Annotated[int, Meta(description="Milliseconds.", ge=0)]
Seconds = Annotated[float, Meta(ge=0)]
Labels = Annotated[
    dict[str, str],
    Meta(
        description="At most 16. Keys of 1 to 63 letters, digits, `.`, `_`, `-`, `/`; values of at most 128 characters."
    ),
]
Token = Annotated[int, Meta(description="Fencing token: rises with every new lease.", ge=0, le=2**53 - 1)]
