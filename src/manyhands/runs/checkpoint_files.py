"""The file formats of a checkpoint: a tree becomes JSON and arrays, arrays become safetensors.

We write safetensors ourselves because a replay is too large to be held in memory twice. We read it
ourselves because we check every length before we use it.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import cycle
from typing import Any

import numpy as np

from manyhands.config.runfiles import JSON_LIMIT
from manyhands.types import Array
from manyhands.types.sizes import human

Named = Mapping[str, Array]
FORMAT = 2  # of what is written
FORMATS = (1, FORMAT)  # whose weights can be read; only runs of FORMAT resume
WEIGHTS, STATE, REPLAY = "weights.safetensors", "state.safetensors", "replay.safetensors"
TREE, MANIFEST = "state.json", "manifest.json"
STEP_NAME = re.compile(r"0|[1-9][0-9]{0,17}")
ASIDE_NAME = re.compile(rf"\.({STEP_NAME.pattern})-old")
DEPTH_LIMIT = 64  # far below Python's recursion limit, so every saved tree can be loaded
CHUNK_BYTES = 8 << 20
DTYPES = {"BOOL": "|b1", "U8": "|u1", "I8": "|i1", "U16": "<u2", "I16": "<i2", "F16": "<f2"}
DTYPES |= {"U32": "<u4", "I32": "<i4", "F32": "<f4", "U64": "<u8", "I64": "<i8", "F64": "<f8"}
DTYPE_NAMES = {code: name for name, code in DTYPES.items()}


def aside_name(final: str) -> str:
    """The name of a folder while a new one replaces it."""
    return f".{final}-old"


def encode(value: Any, path: tuple[str, ...], arrays: dict[str, Array]) -> Any:
    """The JSON of a tree; its arrays go into ``arrays``.

    One $ marks a placeholder, so a key that begins with $ gets a second one.
    """
    if len(path) > DEPTH_LIMIT:
        raise ValueError(f"the state is nested too deeply at {'/'.join(path[:4])}/…")
    if isinstance(value, np.ndarray):
        arrays[_array_name(path)] = value
        return {"$array": _array_name(path)}
    if type(value) is float and not math.isfinite(value):
        return {"$float": str(value)}
    if value is None or type(value) in (bool, int, float, str):
        return value
    if type(value) is list:
        return [encode(item, (*path, str(i)), arrays) for i, item in enumerate(value)]
    if isinstance(value, dict) and all(type(key) is str for key in value):
        keys = [("$" if key.startswith("$") else "") + key for key in value]
        items = [encode(item, (*path, key), arrays) for key, item in value.items()]
        return dict(zip(keys, items, strict=True))
    kind = "dict whose keys are not all str" if isinstance(value, dict) else type(value).__name__
    raise TypeError(f"state {'/'.join(path)!r} is a {kind}, neither a JSON value nor an array")


def decode(value: Any, arrays: Named) -> Any:
    if type(value) is list:
        return [decode(item, arrays) for item in value]
    if type(value) is not dict:
        return value
    if value.keys() == {"$float"}:
        return float(str(value["$float"]))
    if value.keys() == {"$array"}:
        if str(value["$array"]) not in arrays:
            raise ValueError(f"{TREE} names an array that is not there")
        return arrays[str(value["$array"])]
    return {key.removeprefix("$"): decode(item, arrays) for key, item in value.items()}


def _array_name(path: tuple[str, ...]) -> str:
    """The path, escaped: names are unique, and none is the one that safetensors reserves."""
    name = "/".join(key.replace("~", "~0").replace("/", "~1") for key in path)
    return "~2" if name == "__metadata__" else name


def file_bytes(arrays: Named) -> Iterator[bytes | memoryview]:
    """The content of a safetensors file, piece by piece. A piece is valid until the next but one:
    two buffers are used in turn, because new memory for every piece costs more than the copy.
    """
    yield _header(arrays)
    buffers = cycle([np.empty(CHUNK_BYTES, np.uint8), np.empty(CHUNK_BYTES, np.uint8)])
    for name in _ordered(arrays):
        for chunk in _chunks(arrays[name]):
            yield _copied(chunk, next(buffers))


def file_arrays(data: Array, name: str) -> dict[str, Array]:
    """The arrays of a safetensors file, as views into ``data`` that do not overlap."""
    size = int.from_bytes(data[:8].tobytes(), "little")
    if size > min(len(data) - 8, JSON_LIMIT):
        raise ValueError(f"{name} has a header of wrong length")
    entries, body = read_json(data[8 : 8 + size].tobytes(), name), data[8 + size :]
    entries.pop("__metadata__", None)
    try:
        views = {key: _view(body, entry) for key, entry in entries.items()}
        _refuse_overlaps(entries.values(), len(body))
        return views
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"{name} has a wrong header ({error!r})") from error


def _header(arrays: Named) -> bytes:
    entries, end = {}, 0
    for name in _ordered(arrays):
        array, begin, end = arrays[name], end, end + arrays[name].nbytes
        if array.dtype.str not in DTYPE_NAMES or name == "__metadata__":
            raise TypeError(f"array {name!r} of {array.dtype} cannot be saved")
        kind = {"dtype": DTYPE_NAMES[array.dtype.str], "shape": list(array.shape)}
        entries[name] = {**kind, "data_offsets": [begin, end]}
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    if len(text) > JSON_LIMIT:
        raise ValueError(f"{len(arrays)} arrays are too many to be saved in one file")
    return len(text).to_bytes(8, "little") + text


def _view(body: Array, entry: Any) -> Array:
    dtype, shape, (begin, end) = DTYPES[entry["dtype"]], entry["shape"], entry["data_offsets"]
    if not all(type(number) is int and number >= 0 for number in (begin, end, *shape)):
        raise ValueError("negative or no integers")
    if end > len(body) or end - begin != math.prod(shape) * np.dtype(dtype).itemsize:
        raise ValueError("shape and place do not fit")
    return body[begin:end].view(dtype).reshape(shape)


def _refuse_overlaps(entries: Iterable[Any], size: int) -> None:
    """The format allows neither overlaps nor gaps."""
    end = 0
    for begin, after in sorted(tuple(entry["data_offsets"]) for entry in entries):
        if begin != end:
            raise ValueError("arrays overlap or leave gaps")
        end = after
    if end != size:
        raise ValueError("more data than arrays")


def _ordered(arrays: Named) -> list[str]:
    """The widest items first: this aligns every array without gaps, which the format forbids."""
    return sorted(arrays, key=lambda name: (-arrays[name].itemsize, name))


def _copied(chunk: Array, buffer: Array) -> memoryview:
    """The bytes in C order, in this buffer.

    Other processes may write to a shared array, and we must hash exactly the bytes we write.
    """
    piece = buffer[: chunk.nbytes]
    np.copyto(piece.view(chunk.dtype).reshape(chunk.shape), chunk)
    return piece.data


def _chunks(array: Array) -> Iterator[Array]:
    """Parts of at most `CHUNK_BYTES`."""
    if array.nbytes <= CHUNK_BYTES:
        yield array
    elif rows := CHUNK_BYTES // (array.nbytes // len(array)):
        for start in range(0, len(array), rows):
            yield array[start : start + rows]
    else:
        for row in array:
            yield from _chunks(row)


def read_json(data: bytes, name: str) -> dict[str, Any]:
    if len(data) > JSON_LIMIT:
        raise ValueError(f"{name} has more than {human(JSON_LIMIT)} of JSON")
    try:
        content = json.loads(data)
    except ValueError as error:
        raise ValueError(f"{name} is not JSON ({error})") from error
    if type(content) is not dict:
        raise ValueError(f"{name} does not hold a JSON object")
    return content
