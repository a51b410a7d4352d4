"""Sizes in bytes, as people read them."""

from __future__ import annotations


def human(size: float) -> str:
    """7.1 GB, 84.2 MB, 1.5 kB, 12 B: with powers of a thousand."""
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= scale:
            return f"{size / scale:,.1f} {unit}"
    return f"{size:.0f} B"
