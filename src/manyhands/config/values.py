"""Converts and checks the value of an option, from a flag, TOML or Python."""

from __future__ import annotations

import json
import math
import sys
import types
import typing
from collections.abc import Mapping
from dataclasses import fields
from decimal import Decimal
from typing import Any

from manyhands.config import registry
from manyhands.types import BadRequest

DEEPEST = 8  # lists within lists


def checked(flag: str, value: Any, kind: type, name: str) -> Any:
    """Checks the value of one option against the field's type and range."""
    field = next(field for field in fields(kind) if field.name == name)
    return in_range(flag, value, typing.get_type_hints(kind)[name], field.metadata)


def in_range(flag: str, value: Any, hint: Any, metadata: Mapping[str, Any]) -> Any:
    """Converts a value to its type and checks its range."""
    typed = _typed(flag, value, hint)
    if (choices := metadata.get("choices")) and typed not in choices:
        raise registry.unknown(flag, typed, list(choices))
    for number in typed if isinstance(typed, tuple) else (typed,):
        if isinstance(number, int | float) and not _is_within(number, metadata):
            raise BadRequest(f"{flag} {value} is out of range", f"give {_range(metadata)}")
    return typed


def _is_within(number: float, metadata: Mapping[str, Any]) -> bool:
    low, above, high = (metadata.get(bound) for bound in ("low", "above", "high"))
    return (
        abs(number) <= sys.float_info.max  # not even a whole number beyond it
        and (low is None or number >= low)
        and (above is None or number > above)
        and (high is None or number <= high)
    )


def _range(metadata: Mapping[str, Any]) -> str:
    words = {"low": "at least", "above": "more than", "high": "at most"}
    bounds = [f"{w} {metadata[k]:g}" for k, w in words.items() if metadata.get(k) is not None]
    return " and ".join(bounds) or "a finite number"


def _typed(flag: str, value: Any, hint: Any) -> Any:
    if isinstance(hint, types.UnionType):  # X | None
        if value is None or value == "none":
            return None
        hint = next(kind for kind in typing.get_args(hint) if kind is not types.NoneType)
    try:
        if typing.get_origin(hint) is Mapping:
            return _plain_arguments(flag, value)
        if typing.get_origin(hint) is tuple:
            items = value.replace(",", " ").split() if isinstance(value, str) else value
            return tuple(_number(item) for item in items)
        return {int: _number, float: _float, bool: _bool, str: _str}[hint](value)
    except (ValueError, TypeError, KeyError, OverflowError):
        name = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
        wanted = name.get(hint, "whole numbers, as in 256,256")
        raise BadRequest(f"{flag} {value!r} is not {wanted}", f"give {wanted}") from None


def _number(value: Any) -> int:
    """100000, 100_000 and 1e5 are whole numbers; 1.5 and true are not."""
    if isinstance(value, bool):
        raise ValueError(value)
    if isinstance(value, str) and ("e" in value.lower() or "." in value):
        if math.isinf(float(value)):
            raise ValueError(value)
        value = Decimal(value)  # exact
    elif isinstance(value, str):
        value = int(value)
    if value != int(value):
        raise ValueError(value)
    return int(value)


def _float(value: Any) -> float:
    if isinstance(value, bool):
        raise ValueError(value)
    return float(value)


def _bool(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    return {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}[
        str(value).lower()
    ]


def _str(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(value)
    return value


# --- Arguments of gymnasium.make ----------------------------------------------------------------


def literal(text: str) -> Any:
    """The value of a text: a number, true, false, none, JSON; otherwise the text itself."""
    word = text.lower()
    if word in ("true", "false", "none", "null"):
        return {"true": True, "false": False}.get(word)
    for kind in (int, float):
        try:
            number = kind(text)
        except ValueError:
            continue
        return number if math.isfinite(number) else text
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _plain_arguments(flag: str, value: Any) -> dict[str, Any]:
    """Names with plain values: JSON can hold them, and none is code."""
    given = literal(value) if isinstance(value, str) else value
    if not isinstance(given, Mapping):
        raise BadRequest(
            f"{flag} {value!r} has no name", f"give {flag}.NAME VALUE, e.g. false or 3"
        )
    for name, one in given.items():
        if not isinstance(name, str) or not name.isidentifier():
            raise BadRequest(f"{flag}: {name!r} is not a name", f"give {flag}.NAME VALUE")
        if not is_plain(one):
            raise BadRequest(
                f"{flag}.{name} {one!r} is not a plain value",
                "give numbers, texts, true, false, none, or lists and tables of them; otherwise "
                "pass a function that makes the environment",
            )
    return {name: _listed(one) for name, one in given.items()}


def is_plain(value: Any, depth: int = 0) -> bool:
    if value is None or type(value) in (bool, int, str):
        return True
    if type(value) is float:
        return math.isfinite(value)
    if depth == DEEPEST:
        return False
    if type(value) in (list, tuple):
        return all(is_plain(item, depth + 1) for item in value)
    return type(value) is dict and all(
        type(key) is str and is_plain(item, depth + 1) for key, item in value.items()
    )


def _listed(value: Any) -> Any:
    """Makes tuples lists, as they will be when config.json is read."""
    if isinstance(value, list | tuple):
        return [_listed(item) for item in value]
    if isinstance(value, dict):
        return {key: _listed(item) for key, item in value.items()}
    return value
