"""Arguments and results as JSON text: checked deeply, copied, measured in UTF-8 bytes.

Only values that JSON gives back unchanged are taken, so that a job sees on every attempt, in every process, what the
caller passed.
"""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Callable, Mapping
from json.encoder import c_make_encoder, encode_basestring  # type: ignore[attr-defined]
from typing import Any

#: Deeper nesting is refused: MariaDB's JSON ends at 32 levels, and a stored call adds its own.
MAX_DEPTH = 30
#: Integers outside this range are rounded by JavaScript and by some databases' JSON types.
MAX_INTEGER = 2**63
#: A call without arguments.
NO_ARGUMENTS = "[[],{}]"

# Made once: json.dumps makes an encoder for every call, and so does JSONEncoder.encode beneath.
_encoder = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False)
_decode = json.JSONDecoder().decode


def _make_encode() -> Callable[[object], str]:
    try:
        chunks = c_make_encoder(None, _encoder.default, encode_basestring, None, ":", ",", False, False, False)
        if "".join(chunks([1, "a"], 0)) != '[1,"a"]':
            return _encoder.encode
    except Exception:  # noqa: BLE001 - another Python's json has none, or another one
        return _encoder.encode
    # Without the map of what is being encoded, by which the library finds cycles: there are none any more.
    return lambda value: "".join(chunks(value, 0))


_encode = _make_encode()


class NotJson(ValueError):
    """A value that JSON cannot carry; the message names its path and what to pass instead."""


def encode(value: object, root: str) -> str:
    """Return `value` as compact JSON text.

    Arguments:
        value: None, bool, int, finite float, str, and lists, tuples and dictionaries of those with text keys.
        root: how to call the value in an error, such as "args".

    Raises:
        NotJson: anything else, a reference to itself, or nesting deeper than 30.
    """
    if _is_plain(value, 0):
        with contextlib.suppress(TypeError, ValueError):  # another thread changes it at this moment
            return _encode(value)
    return _encode(_plain(value, root, 0))


def encode_call(args: tuple[object, ...], kwargs: Mapping[str, object]) -> str:
    """Return the arguments of a call as JSON text: a list of a list and a dictionary.

    Raises:
        NotJson: as `encode`.
    """
    if not args and not kwargs:
        return NO_ARGUMENTS
    if _is_plain(args, 0) and _is_plain(kwargs, 0):
        with contextlib.suppress(TypeError, ValueError):
            return _encode((args, kwargs))
    return _encode([_plain(args, "args", 0), _plain(kwargs, "kwargs", 0)])


def decode(text: str) -> Any:
    """Return a fresh copy of what `encode` was given; tuples have become lists."""
    return _decode(text)


def size(text: str) -> int:
    """Return the length of `text` in UTF-8 bytes."""
    return len(text) if text.isascii() else len(text.encode())


def _is_plain(value: Any, depth: int) -> bool:
    """Whether `_plain` would take `value`: without the paths that only an error needs."""
    kind = type(value)
    if kind is str:
        return bool(value.isascii() and "\0" not in value)
    if kind is int:
        return bool(-MAX_INTEGER <= value < MAX_INTEGER)
    if value is None or kind is bool:
        return True
    if kind is float:
        return math.isfinite(value)
    if depth >= MAX_DEPTH:
        return False
    if kind is list or kind is tuple:
        items = value
    elif kind is dict:
        items = value.values()
        for key in value:
            if type(key) is not str or not key.isascii() or "\0" in key:
                return False
    else:
        return False
    for item in items:
        if not _is_plain(item, depth + 1):
            return False
    return True


def _plain(value: object, path: str, depth: int) -> object:
    if depth > MAX_DEPTH:
        raise NotJson(f"{path} is nested deeper than {MAX_DEPTH} levels, or contains itself; pass a flatter value.")
    # Exact types: a subclass (an enum, a SafeString, a lazy text) would come back as something else.
    kind = type(value)
    if value is None or kind is bool:
        return value
    if kind is str:
        return _text(value, path)  # type: ignore[arg-type]
    if kind is int:
        if not -MAX_INTEGER <= value < MAX_INTEGER:  # type: ignore[operator]
            raise NotJson(f"{path} is an integer beyond 64 bits; pass it as a string.")
        return value
    if kind is float:
        if not math.isfinite(value):  # type: ignore[arg-type]
            raise NotJson(f"{path} is {value!r}, which JSON does not have; pass None or a string.")
        return value
    if kind is list or kind is tuple:
        return [_plain(item, f"{path}[{index}]", depth + 1) for index, item in enumerate(value)]  # type: ignore[arg-type, var-annotated]
    if kind is dict:
        plain = {}
        for key, item in value.items():  # type: ignore[attr-defined]
            if type(key) is not str:
                raise NotJson(f"{path} has the key {_shown(key)}; keys are strings.")
            plain[_text(key, f"a key of {path}")] = _plain(item, f"{path}[{key!r}]", depth + 1)
        return plain
    raise NotJson(f"{path} is {_described(value)}, which is not a JSON value; {_remedy(value)}")


def _text(value: str, path: str) -> str:
    if "\0" in value:
        raise NotJson(f"{path} contains a NUL character, which databases refuse; remove it.")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise NotJson(
            f"{path} contains a lone surrogate, which is not valid text; decode the bytes properly."
        ) from None
    return value


def _shown(value: object) -> str:
    return f"{value!r}" if isinstance(value, int | float | bool | None) else f"of type {type(value).__name__}"


def _described(value: object) -> str:
    kind = value.__class__  # not type(): request.user is a lazy object that stands for a user
    return f"a {kind.__qualname__}" if kind.__module__ == "builtins" else f"a {kind.__module__}.{kind.__qualname__}"


def _remedy(value: object) -> str:
    kind = type(value)
    if hasattr(value, "_meta") and hasattr(value, "pk"):
        return "pass its primary key and load it in the job."
    if isinstance(value, str):
        return "pass str(value)."
    if hasattr(value, "isoformat"):
        return "pass value.isoformat()."
    if kind.__name__ in ("UUID", "Decimal", "PosixPath", "Path", "__proxy__"):
        return "pass str(value)."
    if isinstance(value, bytes | bytearray | memoryview):
        return "decode it, or store it and pass its key."
    if isinstance(value, set | frozenset):
        return "pass a list."
    return "pass its key, its parts or a string."


def printable(text: str, limit: int = 10_000) -> str:
    """Return `text` as any database can store it: no NUL, no lone surrogates, at most `limit` characters."""
    text = text.replace("\0", "\N{SYMBOL FOR NULL}").encode("utf-8", "replace").decode()
    return text if len(text) <= limit else text[: limit - 1] + "…"
