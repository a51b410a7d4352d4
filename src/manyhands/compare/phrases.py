"""Numbers as text."""

from __future__ import annotations

from manyhands.compare.statistics import Estimate

SHARES = ("sharing", "efficiency")


def number(value: float) -> str:
    """Three significant digits, with thousands separators."""
    size = abs(value)
    if size >= 100:
        return f"{value:,.0f}"
    if size >= 10:
        return f"{value:.1f}"
    return f"{value:.2f}" if size >= 0.1 or not size else f"{value:.3g}"


def short(value: float) -> str:
    """20,000 as 20k."""
    for size, letter in ((1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:g}{letter}"
    return f"{value:g}"


def amount(measure: str, value: float) -> str:
    return f"{value:.0%}" if measure in SHARES else number(value)


def estimated(measure: str, found: Estimate) -> str:
    """'≥ 43.1 [38.0, …]'; with one seed the value alone."""
    value = f"{found.bound} {amount(measure, found.value)}".strip()
    if found.low is None or found.high is None:
        return value
    high = "…" if found.bound == "≥" else amount(measure, found.high)
    low = "…" if found.bound == "≤" else amount(measure, found.low)
    return f"{value} [{low}, {high}]"


def listed(words: list[str]) -> str:
    """'a, b and c'."""
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)
