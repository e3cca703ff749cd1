"""Line plots as SVG: no library, the same bytes for the same numbers, and a light ground of their own."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import ceil, floor, log10
from typing import TYPE_CHECKING
from xml.sax.saxutils import escape

if TYPE_CHECKING:
    from collections.abc import Sequence

WIDTH = 760
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 190, 34, 46
_PANEL_HEIGHT, _PANEL_GAP = 160, 44
COLORS = ("#2563eb", "#dc2626", "#16a34a", "#9333ea", "#d97706", "#0891b2", "#64748b")
_STYLE = "text{font:12px Helvetica,Arial,sans-serif;fill:#1f2933}.grid{stroke:#cbd2d9}.axis{stroke:#7b8794}"


@dataclass(frozen=True)
class Series:
    """One line: its name, and its points from left to right."""

    name: str
    points: Sequence[tuple[float, float]]
    is_dashed: bool = False


@dataclass
class Panel:
    """One field of a plot with its own scale up, from nought."""

    title: str
    lines: list[Series] = field(default_factory=list)


@dataclass
class Plot:
    """Panels above each other that share what goes across."""

    title: str
    across: str
    panels: list[Panel]
    positions: Sequence[float] = ()
    """Where marks stand across; even ones if none are named. Named ones stand evenly, whatever their values."""

    def draw(self) -> str:
        """Return the picture."""
        height = _TOP + len(self.panels) * (_PANEL_HEIGHT + _PANEL_GAP) - _PANEL_GAP + _BOTTOM
        parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}">',
            f"<title>{escape(self.title)}</title>",
            f"<style>{_STYLE}</style>",
            f'<rect width="{WIDTH}" height="{height}" rx="8" fill="#fbfaf7" stroke="#cbd2d9"/>',
        ]
        for number, panel in enumerate(self.panels):
            parts += self._panel(panel, _TOP + number * (_PANEL_HEIGHT + _PANEL_GAP))
        parts += self._across(height - _BOTTOM)
        return "\n".join([*parts, "</svg>", ""])

    def _panel(self, panel: Panel, top: float) -> list[str]:
        most = max((value for line in panel.lines for _, value in line.points), default=1.0)
        step = nice_step(most)
        limit = step * max(1, ceil(most / step))
        parts = [_text(_LEFT, top - 12, panel.title)]
        for number in range(round(limit / step) + 1):
            y = top + _PANEL_HEIGHT * (1 - number * step / limit)
            parts.append(_line(_LEFT, y, WIDTH - _RIGHT, y, "grid" if number else "axis"))
            parts.append(_text(_LEFT - 8, y + 4, f"{number * step:,.10g}", "end"))
        taken: list[float] = []
        for line, color in zip(panel.lines, COLORS, strict=False):
            points = [(self._x(at), top + _PANEL_HEIGHT * (1 - value / limit)) for at, value in line.points]
            dash = ' stroke-dasharray="5 4"' if line.is_dashed else ""
            path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
            parts.append(f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="2"{dash}/>')
            y = free_position(points[-1][1] + 4, taken)
            taken.append(y)
            parts.append(f'<text x="{WIDTH - _RIGHT + 8}" y="{y:.1f}" style="fill:{color}">{escape(line.name)}</text>')
        return parts

    def _across(self, bottom: float) -> list[str]:
        _, most = self._ends()
        step = nice_step(most)
        marks = self.positions or [step * number for number in range(floor(most / step + 1e-9) + 1)]
        parts = [_text(self._x(mark), bottom + 18, f"{mark:,.10g}", "middle") for mark in marks]
        return [*parts, _text((_LEFT + WIDTH - _RIGHT) / 2, bottom + 38, self.across, "middle")]

    def _x(self, value: float) -> float:
        width = WIDTH - _LEFT - _RIGHT
        if self.positions:
            return _LEFT + width * list(self.positions).index(value) / max(1, len(self.positions) - 1)
        least, most = self._ends()
        return _LEFT + width * (value - least) / ((most - least) or 1.0)

    def _ends(self) -> tuple[float, float]:
        values = [at for panel in self.panels for line in panel.lines for at, _ in line.points]
        return (min([0.0, *values]), max(values, default=1.0))


def nice_step(most: float) -> float:
    """Return a step of 1, 2 or 5 times a power of ten that leaves at most five steps."""
    if most <= 0:
        return 1.0
    least = most / 5
    power = 10.0 ** floor(log10(least))
    return float(next(power * factor for factor in (1, 2, 5, 10) if power * factor >= least * (1 - 1e-9)))


def free_position(wanted: float, taken: Sequence[float], height: float = 15) -> float:
    """Return the nearest place below or above that no other name stands at."""
    candidates = (wanted + side * step * height / 2 for step in range(40) for side in (1, -1))
    return next(position for position in candidates if all(abs(position - other) >= height for other in taken))


def _text(x: float, y: float, text: str, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _line(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    return f'<line class="{kind}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'
