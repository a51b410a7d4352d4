"""Checks rows that come from a file before they are used."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from manyhands.types import Array, EnvSpec, restored

CLOSING = -1  # the action of a closing row


def refuse_strange_rows(arrays: Mapping[str, Array], written: Array, spec: EnvSpec) -> None:
    """Refuses indices and numbers that no run could have written."""
    like = np.zeros(len(written), np.int64)
    restored.between({"written": written}, "written", like, 0, restored.MOST)
    restored.between(arrays, "action", arrays["action"], CLOSING, spec.actions - 1)
    restored.between(arrays, "discount", arrays["discount"], 0, 1)
    for place, count in enumerate(spec.counts):
        numbers = {"frame": arrays["frame"][..., place]}
        restored.between(numbers, "frame", numbers["frame"], 0, count - 1)
    for name, array in arrays.items():
        restored.finite(array, name)
