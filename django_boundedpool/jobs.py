"""Declaring jobs and submitting them."""

from __future__ import annotations

import asyncio
import functools
import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Generic, ParamSpec, TypeVar, overload

from django.conf import settings
from django.core.exceptions import SynchronousOnlyOperation

from . import context
from .engine import payload
from .engine.errors import ConfigurationError, InvalidArguments, PayloadTooLarge, Rejected
from .engine.ids import uuid7
from .engine.options import (
    CALL_OPTIONS,
    FOREIGN_WORDS,
    USING_OPTIONS,
    checked,
    misplaced,
)
from .engine.pool import Pool
from .engine.record import JobRecord
from .engine.spec import JobSpec
from .handles import JobHandle, owner_key
from .lifecycle import runtime
from .lifecycle.runtime import Runtime
from .models import KEY_LENGTH
from .submission import make_durable

P = ParamSpec("P")
R = TypeVar("R")

#: Arguments whose names look like secrets are never stored or shown, unless the job says `sensitive=()`.
SENSITIVE_WORDS = ("password", "passwd", "secret", "token", "api_key", "apikey", "credential", "authorization")
WITHHELD = "[withheld]"

#: Methods that people look for, and what to write.
METHODS: Mapping[str, str] = {
    "asubmit": "this version does not have it yet; use `await sync_to_async(job.submit)(...)`",
    "submit_many": "it is not in this version yet; call submit once for each",
}
#: Shown under the traceback of a refusal that nobody answers.
MIDDLEWARE = "django_boundedpool.middleware.OverloadMiddleware"
UNANSWERED = f"Add {MIDDLEWARE!r} to MIDDLEWARE, or use @overload_responses, to answer this with 503."

_registry: dict[str, JobFunction[Any, Any]] = {}


@dataclass(frozen=True)
class _Call:
    """What `using` adds to one submit."""

    owner: str = ""
    batch: str = ""
    correlation_id: str = ""


class JobFunction(Generic[P, R]):
    """A function that can also run in a pool. Calling it runs it here and now. Immutable, safe from any thread.

    Attributes:
        spec: how its jobs are run.
    """

    def __init__(self, spec: JobSpec, call: _Call | None = None) -> None:
        self.spec = spec
        self._call = call or _Call()
        self._signature = context.bind(spec.function, spec.takes_context)
        functools.update_wrapper(self, spec.function)

    def __repr__(self) -> str:
        return f"<JobFunction {self.spec.name}>"

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        result: R = self.spec.function(*args, **kwargs)
        return result

    def __getattr__(self, name: str) -> Any:
        if name in FOREIGN_WORDS:
            raise AttributeError(f"A job has no {name!r} here; use {FOREIGN_WORDS[name]}.")
        if name in METHODS:
            raise AttributeError(f"A job has no {name!r}: {METHODS[name]}.")
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def using(self, **overrides: Any) -> JobFunction[P, R]:
        """Return a copy for one or more submits.

        Arguments:
            owner: the user whose job this is, or its primary key; None or an anonymous user means nobody.
            batch: text that groups jobs, at most 191 characters.
            correlation_id: text that names what caused the job, at most 191 characters.
            And every option of `job` but name, takes_context and sensitive.

        Raises:
            ConfigurationError: an unknown option or an impossible value.
        """
        given = {name: overrides.pop(name) for name in CALL_OPTIONS if name in overrides}
        call = self._call
        if "owner" in given:
            call = replace(call, owner=owner_key(given["owner"]))
        for name in ("batch", "correlation_id"):
            if name in given:
                call = replace(call, **{name: _short_text(name, given[name])})
        spec = replace(self.spec, **checked(f"{self.spec.name}.using", overrides, USING_OPTIONS))
        return JobFunction(spec, call)

    def submit(self, *args: Any, **kwargs: Any) -> JobHandle:
        """Hand one call to the pool. Never waits for a place; waits for its row's commit, at most STORE_TIMEOUT.

        Inside `transaction.atomic()` the row is part of that transaction: the job starts when it commits, and a
        rollback leaves no trace of it.

        Arguments:
            args, kwargs: JSON values that fit the function's signature (its context left out).

        Raises:
            Rejected: not accepted; the subclass and its `code` say why.
            SynchronousOnlyOperation: called on a running event loop.
            ConfigurationError: no such pool, or autocommit is off outside `atomic()`.
        """
        _refuse_event_loop(self.spec.name)
        try:
            return self._submit(args, kwargs)
        except InvalidArguments:
            raise
        except Rejected as refusal:
            if MIDDLEWARE not in settings.MIDDLEWARE:
                refusal.add_note(UNANSWERED)
            raise

    def _submit(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> JobHandle:
        active = runtime.current()
        active.give_back_dropped()
        pool = _pool(active, self.spec)
        pool.check_open(self.spec.name)
        record = self._record(active, pool, args, kwargs)
        try:
            pool.reserve(record)
            make_durable(active, pool, record)
        except Rejected:
            pool.withdraw(record)
            raise
        except BaseException:
            # A signal handler's SystemExit may come at any point: whether there is a row, the row itself must tell.
            # Unless it was accepted already: then it is the pool's, and runs.
            if pool.withdraw(record):
                active.settle(record.id, stored=True)
            raise
        return JobHandle(record.id, record=record)

    def try_submit(self, *args: Any, **kwargs: Any) -> JobHandle | None:
        """Do as `submit`, but return None where the pool refuses; wrong arguments still raise."""
        try:
            return self.submit(*args, **kwargs)
        except InvalidArguments:
            raise
        except Rejected:
            return None

    def _record(self, active: Runtime, pool: Pool, args: tuple[Any, ...], kwargs: dict[str, Any]) -> JobRecord:
        spec = self.spec
        try:
            bound = self._signature.bind(*args, **kwargs)
        except TypeError as error:
            hint = misplaced([word for word in kwargs if word not in self._signature.parameters])
            raise pool.refused(InvalidArguments(f"{spec.name}: {error}.{hint}", pool=spec.pool), spec.name) from None
        try:
            text = f"[{payload.encode(args, 'args')},{payload.encode(kwargs, 'kwargs')}]"
        except payload.NotJson as error:
            text = f"{spec.name}: {self._with_parameter(str(error))}"
            raise pool.refused(InvalidArguments(text, pool=spec.pool), spec.name) from None
        size = payload.size(text)
        if size > pool.config.max_payload_bytes:
            message = (
                f"{spec.name}: the arguments have {size} bytes as JSON; at most {pool.config.max_payload_bytes} "
                "(MAX_PAYLOAD_BYTES) are taken. Store the data and pass its key."
            )
            raise pool.refused(PayloadTooLarge(message, pool=spec.pool), spec.name)
        stored, withheld = self._censored(bound, payload.decode(text))
        config = pool.config
        return JobRecord(
            id=uuid7(),
            spec=replace(
                spec,
                timeout=config.timeout if spec.timeout is None else spec.timeout,
                start_deadline=config.start_deadline if spec.start_deadline is None else spec.start_deadline,
            ),
            payload=text,
            payload_bytes=size,
            stored_call=stored,
            args_withheld=withheld,
            submitted_at=pool.clock.now(),
            retention=config.retention,
            owner_key=self._call.owner,
            batch=self._call.batch,
            correlation_id=self._call.correlation_id,
            process=active.process,
        )

    def _positional(self) -> list[str]:
        return [
            name
            for name, parameter in self._signature.parameters.items()
            if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
        ]

    def _with_parameter(self, fault: str) -> str:
        """Call the positional argument that `fault` begins with by its parameter too."""
        names = self._positional()
        place = re.match(r"(?:a key of )?args\[(\d+)\]", fault)
        if place is None or int(place[1]) >= len(names):
            return fault
        return f"{place[0]} ({names[int(place[1])]!r}){fault[place.end() :]}"

    def _censored(self, bound: inspect.BoundArguments, plain: list[Any]) -> tuple[tuple[Any, Any], bool]:
        """Return the arguments as they may be stored, and whether some were withheld."""
        args, kwargs = plain
        positional = self._positional()
        hidden = [index for index, name in enumerate(positional) if index < len(args) and self._is_sensitive(name)]
        # Not by parameter: words that land in **kwargs have none of their own.
        hidden_words = [name for name in kwargs if self._is_sensitive(name)]
        for index in hidden:
            args[index] = WITHHELD
        for name in hidden_words:
            kwargs[name] = WITHHELD
        variadic = next((p.name for p in self._signature.parameters.values() if p.kind is p.VAR_POSITIONAL), None)
        if variadic is not None and self._is_sensitive(variadic) and len(args) > len(positional):
            args[len(positional) :] = [WITHHELD] * (len(args) - len(positional))
            hidden.append(len(positional))
        return (args, kwargs), bool(hidden or hidden_words)

    def _is_sensitive(self, name: str) -> bool:
        if self.spec.sensitive is not None:
            return name in self.spec.sensitive
        return any(word in name.lower() for word in SENSITIVE_WORDS)


@overload
def job(function: Callable[P, R], /) -> JobFunction[P, R]: ...


@overload
def job(**options: Any) -> Callable[[Callable[P, R]], JobFunction[P, R]]: ...


def job(function: Callable[..., Any] | None = None, /, **options: Any) -> Any:
    """Declare a function as a job; use bare or with options. Durations are seconds or timedeltas.

    Arguments:
        pool: name of the pool, "default" if not given.
        name: registered name, the function's dotted path if not given; stored with every job, so keep it.
        priority: from -100 to 100; higher starts earlier, ageing lets the lowest start too.
        timeout: longest run of one attempt; the job is asked to stop then.
        start_deadline: longest wait for the first start; then the job is cancelled.
        retry: a `Retry`, or None for one attempt.
        takes_context: pass a `JobContext` as the first argument.
        sensitive: argument names whose values are never stored or shown; by default those that look like secrets.
        store_result: False drops the returned value unchecked.
        public_errors: exception classes whose text the owner may read.
        retention: how long the row is kept after the end, instead of the pool's RETENTION.

    Raises:
        ConfigurationError: at decoration, for anything that cannot work; the message says what to write.
    """
    if function is None:
        return functools.partial(_declare, options)
    if isinstance(function, str):
        raise ConfigurationError(f'@job takes keyword options; write @job(pool="{function}").')
    if not callable(function) and not isinstance(function, classmethod | staticmethod):
        raise ConfigurationError(f"@job takes keyword options, not {function!r}.")
    return _declare({}, function)


def _declare(options: dict[str, Any], function: Callable[..., Any]) -> JobFunction[Any, Any]:
    label = getattr(function, "__qualname__", repr(function))
    if isinstance(function, JobFunction):
        raise ConfigurationError(f"{label} is a job already; @job is written once.")
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        raise ConfigurationError(
            f"{label} is async; this version runs plain functions only. Call asyncio.run(...) inside a plain one."
        )
    if inspect.isgeneratorfunction(function):
        raise ConfigurationError(f"{label} is a generator; a job is a plain function that returns its result.")
    if _belongs_to_a_class(function):
        raise ConfigurationError(
            f"{label} belongs to a class; move it to module level and pass the object's primary key."
        )
    if not inspect.isfunction(function) or "." in function.__qualname__ or function.__name__ == "<lambda>":
        raise ConfigurationError(f"{label} is not a function at module level; other processes could not find it.")
    name = options.pop("name", None) or f"{function.__module__}.{function.__qualname__}"
    if not isinstance(name, str) or len(name) > 255:
        raise ConfigurationError(f"@job(name={name!r}): give a text of at most 255 characters.")
    values = checked(f"@job on {label}", options)
    parameters = list(inspect.signature(function).parameters.values())
    if values.get("takes_context") and not (
        parameters
        and parameters[0].kind in (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    ):
        raise ConfigurationError(f"{label}: takes_context=True needs a first positional parameter for the context.")
    unknown = set(values.get("sensitive", ())) - {parameter.name for parameter in parameters}
    if unknown and not any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters):
        raise ConfigurationError(
            f"{label}: sensitive names {', '.join(sorted(unknown))}, which it has no argument for."
        )
    declared: JobFunction[Any, Any] = JobFunction(JobSpec(name=name, function=function, **values))
    known = _registry.get(name)
    # The same function again is a module that is loaded a second time.
    if known is not None and _place(known.spec.function) != _place(function):
        raise ConfigurationError(f"Two jobs are named {name!r}; give one of them another name=.")
    _registry[name] = declared
    return declared


def _belongs_to_a_class(function: Callable[..., Any]) -> bool:
    if isinstance(function, classmethod | staticmethod) or inspect.ismethod(function):
        return True
    holder = function.__qualname__.rpartition(".")[0] if inspect.isfunction(function) else ""
    return bool(holder) and not holder.endswith("<locals>")


def _place(function: Callable[..., Any]) -> tuple[str, str]:
    return function.__code__.co_filename, function.__qualname__


def registered() -> Mapping[str, JobFunction[Any, Any]]:
    """Return every declared job by name."""
    return _registry


def _short_text(option: str, value: object) -> str:
    text = "" if value is None else str(value)
    if len(text) > KEY_LENGTH or text != payload.printable(text, KEY_LENGTH):
        raise ConfigurationError(f"{option}={value!r}: give a text of at most {KEY_LENGTH} printable characters.")
    return text


def _pool(active: Runtime, spec: JobSpec) -> Pool:
    try:
        return active.pools[spec.pool]
    except KeyError:
        known = ", ".join(map(repr, active.pools))
        raise ConfigurationError(f"{spec.name}: there is no pool {spec.pool!r}; BOUNDED_POOLS has {known}.") from None


def _refuse_event_loop(name: str) -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise SynchronousOnlyOperation(
        f"{name}.submit() waits for a commit and would block the event loop; "
        "use `await sync_to_async(job.using(owner=await request.auser()).submit)(...)`, or a sync view."
    )
