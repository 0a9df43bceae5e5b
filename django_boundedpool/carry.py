"""What travels with a job, from whoever submits it to where its code runs: a named list, and nothing else.

=============  ====================================================================================
key            value
=============  ====================================================================================
language       the active language, where it is another one than LANGUAGE_CODE
time_zone      the name of the activated time zone, or its offset ("+02:00") if it is a `datetime.timezone`;
               any other tzinfo without a `key` is left out, since no text would give it back
traceparent    the W3C trace parent of the current OpenTelemetry span, if the process uses OpenTelemetry
carriers       by its dotted path, what each object named in the pool's CARRY has captured
=============  ====================================================================================

A carrier has `capture() -> JSON value`, called in the thread that submits (None: nothing to carry this time), and
`restore(value) -> undo or None`, called before each attempt where it runs: for a plain function in its worker thread,
for an async one on the event loop, where it must not block.
"""

from __future__ import annotations

import copy
import importlib
import inspect
import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, tzinfo
from datetime import timezone as fixed_offset
from typing import Any

from django.conf import settings
from django.utils import timezone, translation
from django.utils.module_loading import import_string
from django.utils.translation import trans_real

from .engine import payload
from .surroundings import unset

logger = logging.getLogger("django_boundedpool.jobs")

Undo = Callable[[], object]

#: Most UTF-8 bytes of JSON that one carrier may give: what waits is bounded in bytes, and this is not counted.
MAX_BYTES = 4096

#: An ISO date that an offset may follow.
MIDNIGHT = "2000-01-01T00:00:00"

_LANGUAGE = getattr(trans_real, "_active", None)
_TIME_ZONE = getattr(timezone, "_active", None)
_TRACE = "opentelemetry.trace"


def capture(carriers: Sequence[str]) -> dict[str, Any] | None:
    """Return what a job takes along from here, as JSON values, or None if there is nothing.

    What cannot be captured is logged and left out; it never refuses a submit.

    Arguments:
        carriers: dotted paths of carriers, asked in this order.
    """
    found: dict[str, Any] = {}
    if not unset(_LANGUAGE):
        language = translation.get_language()
        if language is not None and language != settings.LANGUAGE_CODE:
            found["language"] = language
    if not unset(_TIME_ZONE):
        zone = timezone.get_current_timezone()
        if zone is not timezone.get_default_timezone() and (name := _zone_name(zone)):
            found["time_zone"] = name
    if _TRACE in sys.modules and (parent := _traceparent()):
        found["traceparent"] = parent
    if carriers and (values := _captured(carriers)):
        found["carriers"] = values
    return found or None


def _zone_name(zone: tzinfo) -> str | None:
    if isinstance(zone, fixed_offset):
        return datetime(2000, 1, 1, tzinfo=zone).isoformat().removeprefix(MIDNIGHT)
    key = getattr(zone, "key", None)
    return key if isinstance(key, str) else None


def _zone(name: str) -> tzinfo | str:
    if name.startswith(("+", "-")):
        return datetime.fromisoformat(f"{MIDNIGHT}{name}").tzinfo or name
    return name


def _traceparent() -> str | None:
    try:
        propagation = importlib.import_module(f"{_TRACE}.propagation.tracecontext")
        headers: dict[str, str] = {}
        propagation.TraceContextTextMapPropagator().inject(headers)
        return headers.get("traceparent")
    except Exception:
        logger.exception("The trace parent of a job could not be captured; the job goes without it.")
        return None


def _captured(carriers: Sequence[str]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for path in carriers:
        try:
            value = import_string(path).capture()
            if value is None:
                continue
            text = payload.encode(value, f"{path}.capture()")
            if payload.size(text) > MAX_BYTES:
                raise ValueError(f"{path}.capture() has {payload.size(text)} bytes as JSON; at most {MAX_BYTES} go.")
            values[path] = payload.decode(text)
        except Exception:
            logger.exception("The carrier %s could not capture; the job goes without it.", path)
    return values


def restore(carry: Mapping[str, Any] | None, carriers: Sequence[str]) -> list[Undo]:
    """Set up here what a job took along, and return what `undo` needs. What fails is logged and left out.

    Arguments:
        carry: what `capture` returned, perhaps in another process.
        carriers: dotted paths of carriers, called in this order. Only these: a stored path imports nothing.
    """
    undos: list[Undo] = []
    if not carry:
        return undos
    try:
        if (language := carry.get("language")) is not None:
            _restore(undos, "the language", lambda: _enter(translation.override(language)))
        if (name := carry.get("time_zone")) is not None:
            _restore(undos, "the time zone", lambda: _enter(timezone.override(_zone(name))))
        stored = carry.get("carriers")
        values = stored if isinstance(stored, Mapping) else {}
        for path in carriers:
            if path in values:
                _restore(undos, path, lambda: import_string(path).restore(copy.deepcopy(values[path])))  # noqa: B023
    except BaseException:
        undo(undos)
        raise
    return undos


def _restore(undos: list[Undo], what: str, step: Callable[[], Undo | None]) -> None:
    try:
        back = step()
        if back is not None and not callable(back):
            raise TypeError(f"restore() returned a {type(back).__name__}; return a callable that undoes it, or None.")
    except Exception:
        logger.exception("Restoring %s for a job failed; the job goes without it.", what)
        return
    if back is not None:
        undos.append(back)


def _enter(override: Any) -> Undo:
    override.__enter__()
    return lambda: override.__exit__(None, None, None)


def undo(undos: list[Undo]) -> None:
    """Call what `restore` returned, the last one first. What fails is logged; the job's outcome stands."""
    while undos:
        back = undos.pop()
        try:
            back()
        except Exception:
            logger.exception("Undoing what a job carried failed: %r.", back)


def check(carriers: Sequence[str]) -> list[str]:
    """Return what is wrong with these carriers, one sentence each. Imports them."""
    return [fault for path in carriers if (fault := _fault(path))]


def _fault(path: str) -> str:
    remedy = "give the dotted path of an object with capture() and restore(value)."
    try:
        carrier = import_string(path)
    except Exception as error:  # noqa: BLE001 - a module may raise anything when it is imported
        return f"{path!r} cannot be imported ({type(error).__name__}: {error}); {remedy}"
    for name in ("capture", "restore"):
        method = getattr(carrier, name, None)
        if not callable(method):
            return f"{path!r} has no method {name}; {remedy}"
        if inspect.iscoroutinefunction(method):
            return f"{path!r} has an async {name}; make it a plain method that does not block."
        bound = isinstance(inspect.getattr_static(carrier, name), staticmethod | classmethod)
        if isinstance(carrier, type) and not bound:
            return f"{path!r} is a class whose {name} needs an instance; give the path of an instance."
    return ""
