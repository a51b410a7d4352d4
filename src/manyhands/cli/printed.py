"""Every value of a plan and where it came from, as ``--print-config`` shows them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from manyhands.cli.arguments import as_text
from manyhands.config.plans import Plan


def values(plan: Plan) -> str:
    lines = [f"task = {plan.task}"]
    for section, fields in plan.as_layer().items():
        for name, value in _spread(fields):
            source = plan.sources.get(f"{section}.{name}", "default")
            label = name if section == "run" else f"{section}.{name}"
            lines.append(f"{label:34} {value:20} {source}")
    return "\n".join(lines)


def _spread(fields: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Names and texts of a section's values; each argument of a table separately."""
    for name, value in fields.items():
        if isinstance(value, dict):
            yield from ((f"{name}.{key}", json.dumps(one)) for key, one in value.items())
        else:
            yield name, as_text(value)
