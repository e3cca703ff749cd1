"""What a test of a program that uses Holdfast, or of a journal for it, can count on."""

from holdfast.testing.clock import ManualClock
from holdfast.testing.contract import BrokenPromiseError, Place, check_journal
from holdfast.testing.journals import FlakyJournal
from holdfast.testing.scenarios import Played, ScenarioError, play

__all__ = [
    "BrokenPromiseError",
    "FlakyJournal",
    "ManualClock",
    "Place",
    "Played",
    "ScenarioError",
    "check_journal",
    "play",
]
