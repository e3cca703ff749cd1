"""The bodies of requests and replies, for those who import both from here."""

from holdfast.wire.replies import *  # noqa: F403
from holdfast.wire.requests import *  # noqa: F403
