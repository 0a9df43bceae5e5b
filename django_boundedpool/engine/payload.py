"""Arguments and results as JSON text: checked deeply, copied, measured in UTF-8 bytes.

Only values that JSON gives back unchanged are taken, so that a job sees on every attempt, in every process, what the
caller passed.
"""

from __future__ import annotations

import json
import math
from typing import Any

#: Deeper nesting is refused: MariaDB's JSON ends at 32 levels, and a stored call adds its own.
MAX_DEPTH = 30
#: Integers outside this range are rounded by JavaScript and by some databases' JSON types.
MAX_INTEGER = 2**63


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
    return json.dumps(_plain(value, root, 0), ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def decode(text: str) -> Any:
    """Return a fresh copy of what `encode` was given; tuples have become lists."""
    return json.loads(text)


def size(text: str) -> int:
    """Return the length of `text` in UTF-8 bytes."""
    return len(text) if text.isascii() else len(text.encode())


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
