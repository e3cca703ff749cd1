"""Durations as people write them: `120`, `90s`, `2m`, `1h30m`, `500ms`. Imports nothing, so that `rlock` can use it."""

from __future__ import annotations

UNITS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
EXAMPLES = "120, 90s, 15m, 1h30m, 30d or 2w"
_DIGITS_MAX = 10


def milliseconds(text: str) -> int | None:
    """Return a duration rounded down, or None if this is not one."""
    rest, total_ms = text.strip(), 0.0
    if rest and rest[-1].isdecimal():
        rest += "s"  # A number alone is seconds. In `1h30` the 30 could be anything.
        if not rest[:-1].replace(".", "", 1).isdecimal():
            return None
    while rest:
        number = _leading(rest, "0123456789.")
        unit = _leading(rest[len(number) :], "dhmsw")
        digits, dot, fraction = number.partition(".")
        if unit not in UNITS_MS or not 0 < len(digits) <= _DIGITS_MAX or "." in fraction or (dot and not fraction):
            return None
        total_ms += float(number) * UNITS_MS[unit]
        rest = rest[len(number) + len(unit) :]
    return int(total_ms) if text.strip() and text.isascii() else None


def seconds(text: str) -> int | None:
    """Return a duration in whole seconds, or None if this is not one, or has a fraction."""
    found_ms = milliseconds(text)
    return None if found_ms is None or found_ms % 1_000 else found_ms // 1_000


def _leading(text: str, chars: str) -> str:
    return text[: len(text) - len(text.lstrip(chars))]
