"""Declaring jobs and submitting them."""

from __future__ import annotations

import functools
import inspect
import re
from asyncio import _get_running_loop
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Generic, ParamSpec, TypeVar, overload

from asgiref.sync import sync_to_async
from django.conf import settings
from django.core.exceptions import SynchronousOnlyOperation

from . import carry, context
from .engine import payload
from .engine.config import PoolConfig
from .engine.errors import ConfigurationError, Expired, InvalidArguments, PayloadTooLarge, Rejected
from .engine.ids import uuid7_int
from .engine.options import (
    CALL_OPTIONS,
    FOREIGN_WORDS,
    USING_OPTIONS,
    Moment,
    checked,
    misplaced,
    moment,
    span,
)
from .engine.pool import Pool
from .engine.record import JobRecord
from .engine.spec import JobSpec
from .handles import JobHandle, owner_key
from .lifecycle import runtime
from .lifecycle.runtime import Runtime
from .models import KEY_LENGTH
from .submission import (
    Writing,
    complete,
    make_all_durable,
    run_inline,
    start_threads,
    sync_caller_waits,
    transaction_open,
)

P = ParamSpec("P")
R = TypeVar("R")

#: Arguments whose names look like secrets are never stored or shown, unless the job says `sensitive=()`.
SENSITIVE_WORDS = ("password", "passwd", "secret", "token", "api_key", "apikey", "credential", "authorization")
WITHHELD = "[withheld]"

#: Methods that people look for, and what to write.
METHODS: Mapping[str, str] = {
    "submit_many": "use django_boundedpool.submit_many([(job, args, kwargs), ...])",
    "asubmit_many": "use `await sync_to_async(django_boundedpool.submit_many)([(job, args, kwargs), ...])`",
    "map": "use django_boundedpool.submit_many([(job, args), ...])",
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
    wait: float | None = None
    deadline: Moment | None = None
    run_after: Moment | None = None


class JobFunction(Generic[P, R]):
    """A function that can also run in a pool. Calling it runs it here and now. Immutable, safe from any thread.

    Attributes:
        spec: how its jobs are run.
    """

    def __init__(self, spec: JobSpec) -> None:
        self.spec = spec
        self._call = _Call()
        self._signature = context.bind(spec.function, spec.takes_context)
        self._arity = _arity(self._signature)
        # The spec as a pool completes it, for the pool that was submitted to last.
        self._completed: tuple[PoolConfig, JobSpec] | None = None
        functools.update_wrapper(self, spec.function)

    def __repr__(self) -> str:
        return f"<JobFunction {self.spec.name}>"

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> R:
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
            wait: longest wait for a place in seconds, instead of the pool's WAIT, and never beyond `deadline`. Inside
                a transaction or a job of the same pool nothing waits.
            deadline: when queue, run and retries together must be over: an aware datetime, or seconds from the submit.
            run_after: earliest start, at most the pool's MAX_DEFER ahead: an aware datetime, or seconds from the
                submit. The job holds a place until then.
            And every option of `job` but name, takes_context, sensitive and lane.

        Raises:
            ConfigurationError: an unknown option or an impossible value.
        """
        given: dict[str, Any] = {name: overrides.pop(name) for name in CALL_OPTIONS if name in overrides}
        for name, value in given.items():
            if name == "owner":
                given[name] = owner_key(value)
            elif name in ("deadline", "run_after"):
                given[name] = moment(name, value)
            elif name == "wait":
                given[name] = None if value is None else span(name, value)
            else:
                given[name] = _short_text(name, value)
        changed = object.__new__(type(self))  # the function and its signature are the same
        changed.__dict__.update(self.__dict__)
        changed._call = replace(self._call, **given)
        if overrides:
            changed.spec = replace(self.spec, **checked(f"{self.spec.name}.using", overrides, USING_OPTIONS))
            changed._completed = None
        return changed

    def submit(self, /, *args: Any, **kwargs: Any) -> JobHandle:
        """Hand one call to the pool. Waits for a place only as long as `wait` or WAIT says, and for its row's commit
        at most STORE_TIMEOUT.

        Inside `transaction.atomic()` the row is part of that transaction: the job starts when it commits, and a
        rollback leaves no trace of it.

        Arguments:
            args, kwargs: JSON values that fit the function's signature (its context left out).

        Raises:
            Rejected: not accepted; the subclass and its `code` say why.
            SynchronousOnlyOperation: called on a running event loop.
            ConfigurationError: no such pool, an impossible moment, or autocommit is off outside `atomic()`.
        """
        self._refuse_event_loop()
        try:
            return self._submit(args, kwargs)
        except Rejected as refusal:
            _say_who_answers(refusal)
            raise

    def try_submit(self, /, *args: Any, **kwargs: Any) -> JobHandle | None:
        """Do as `submit`, but return None where the pool refuses; wrong arguments still raise."""
        self._refuse_event_loop()
        active = runtime.current()
        active.give_back_dropped()
        pool = _pool(active, self.spec)
        if pool.turned_away(self.spec, may_wait=self._wait(pool) > 0):
            return None
        try:
            return self._submit(args, kwargs)
        except InvalidArguments:
            raise
        except Rejected:
            return None

    async def asubmit(self, /, *args: Any, **kwargs: Any) -> JobHandle:
        """Do as `submit` without blocking the event loop, however long it waits for a place or a commit.

        Arguments and errors are those of `submit`.

        When cancelled, as when the client goes away: while it waits for a place there is no job; a job whose row is
        being written, or that has begun, is cancelled (`disconnect`), since nobody has its handle.
        """
        try:
            return await self._asubmit(args, kwargs)
        except Rejected as refusal:
            _say_who_answers(refusal)
            raise

    async def _asubmit(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> JobHandle:
        active = runtime.current()
        active.give_back_dropped()
        pool = _pool(active, self.spec)
        seconds = self._wait(pool)
        below = sync_caller_waits()  # its thread may have a transaction open
        if seconds > 0 and (_works_for(pool) or (below and await sync_to_async(transaction_open)())):
            seconds = 0.0
        self._check_open(pool, seconds)
        record = self._record(active, pool, args, kwargs)
        unstored = pool.config.name in active.memories and not active.options.inline and not below
        if seconds > 0:
            await pool.areserve_within(record, _until_deadline(pool, record, seconds))
        elif not unstored:
            pool.reserve(record)
        if unstored:
            start_threads(active, pool, record)
            if seconds > 0:
                pool.accept(record)
            else:
                pool.admit(record)
            return JobHandle(record=record)
        await Writing(active, pool, record).done()
        return JobHandle(record=record)

    def _submit(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> JobHandle:
        active = runtime.current()
        active.give_back_dropped()
        pool = _pool(active, self.spec)
        seconds = self._wait(pool)
        if seconds > 0 and (_works_for(pool) or transaction_open()):
            seconds = 0.0  # whoever waits there holds what others wait for: a worker, or locks
        self._check_open(pool, seconds)
        record = self._record(active, pool, args, kwargs)
        if pool.config.name in active.memories and seconds == 0 and not transaction_open():
            start_threads(active, pool, record)
            pool.admit(record)
            if active.options.inline:
                run_inline(pool, record)
            return JobHandle(record=record)
        if seconds > 0:
            pool.reserve_within(record, _until_deadline(pool, record, seconds))
        else:
            pool.reserve(record)
        complete(active, pool, record)
        return JobHandle(record=record)

    def _check_open(self, pool: Pool, seconds: float) -> None:
        """Refuse at once, before any argument is read, what could not be accepted after `seconds` either."""
        pool.check_open(self.spec, may_wait=seconds > 0)
        deadline = self._call.deadline
        if deadline is not None and deadline.seen_from(now := pool.clock.time()) <= now:
            error = Expired(f"The deadline of {self.spec.name} has passed already.", pool=pool.config.name)
            raise pool.refused(error, self.spec.name)

    def _refuse_event_loop(self) -> None:
        if _get_running_loop() is None:
            return
        name = self.spec.name
        _refuse_event_loop(f"{name}.submit()", f"await {name.rpartition('.')[2]}.asubmit(...)")

    def _wait(self, pool: Pool) -> float:
        return pool.config.wait if self._call.wait is None else self._call.wait

    def _record(self, active: Runtime, pool: Pool, args: tuple[Any, ...], kwargs: dict[str, Any]) -> JobRecord:
        config = pool.config
        spec = self._spec_for(config, inline=active.options.inline)
        bound: inspect.BoundArguments | None = None
        if kwargs or not self._arity[0] <= len(args) <= self._arity[1]:
            try:
                bound = self._signature.bind(*args, **kwargs)
            except TypeError as error:
                hint = misplaced([word for word in kwargs if word not in self._signature.parameters])
                raise pool.refused(
                    InvalidArguments(f"{spec.name}: {error}.{hint}", pool=spec.pool), spec.name
                ) from None
        try:
            text = payload.encode_call(args, kwargs)
        except payload.NotJson as error:
            text = f"{spec.name}: {self._with_parameter(str(error))}"
            raise pool.refused(InvalidArguments(text, pool=spec.pool), spec.name) from None
        size = payload.size(text)
        if size > config.max_payload_bytes:
            message = (
                f"{spec.name}: the arguments have {size} bytes as JSON; at most {config.max_payload_bytes} "
                "(MAX_PAYLOAD_BYTES) are taken. Store the data and pass its key."
            )
            raise pool.refused(PayloadTooLarge(message, pool=spec.pool), spec.name)
        call = self._call
        record = JobRecord(
            uuid7_int(), spec, text, size, pool.clock.time(), active.process, config.retention, call.owner
        )
        if config.persist != "memory":
            record.stored_call, record.args_withheld = self._censored(
                bound or self._signature.bind(*args, **kwargs), payload.decode(text)
            )
        if call.batch:
            record.batch = call.batch
        if call.correlation_id:
            record.correlation_id = call.correlation_id
        if (carried := carry.capture(config.carry)) is not None:
            record.carry = carried
        if call.deadline is not None or call.run_after is not None:
            _set_moments(pool, record, call)
        return record

    def _spec_for(self, config: PoolConfig, *, inline: bool) -> JobSpec:
        """Return the spec with what the pool's settings give where the job says nothing."""
        if self._completed is None or self._completed[0] is not config:
            spec = self.spec
            spec = replace(
                spec,
                timeout=config.timeout if spec.timeout is None else spec.timeout,
                start_deadline=config.start_deadline if spec.start_deadline is None else spec.start_deadline,
                # Inline it runs in the caller's thread, an async one too: see `context.run`.
                asynchronous=spec.asynchronous and not inline,
            )
            self._completed = config, spec
        return self._completed[1]

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
        owner_limit: jobs that one owner may have in the pool, instead of its OWNER_LIMIT.
        lane: "cpu" for code that computes rather than waits: one such job at a time runs in the process.

    An `async def` function runs on the process's event loop and occupies one of the pool's workers, but no thread.

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
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise ConfigurationError(f"{label} is a generator; a job is a function that returns its result.")
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
    values["asynchronous"] = inspect.iscoroutinefunction(function)
    if values["asynchronous"] and values.get("lane") == "cpu":
        raise ConfigurationError(
            f'{label} is async and says lane="cpu": code that computes would stop the event loop. Make it a plain '
            "function, or leave lane out."
        )
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
    # Printable: a line break would go on into a log line or a header.
    if len(text) > KEY_LENGTH or not text.isprintable():
        raise ConfigurationError(f"{option}={text[:50]!r}: give a text of at most {KEY_LENGTH} printable characters.")
    return text


def _pool(active: Runtime, spec: JobSpec) -> Pool:
    try:
        return active.pools[spec.pool]
    except KeyError:
        known = ", ".join(map(repr, active.pools))
        raise ConfigurationError(f"{spec.name}: there is no pool {spec.pool!r}; BOUNDED_POOLS has {known}.") from None


def submit_many(calls: Iterable[tuple[Any, ...]]) -> list[JobHandle | Rejected]:
    """Hand many calls to their pools and commit their rows together. Never waits for a place.

    Arguments:
        calls: tuples of a job (or what its `using` returned), a sequence of positional arguments and, if wanted, a
            dictionary of keyword arguments.

    Returns:
        One outcome per call, in order: its handle, or the `Rejected` that says why it was not accepted. One that is
        refused keeps none of the others out.

    Raises:
        TypeError: something that is no such tuple; nothing was submitted.
        SynchronousOnlyOperation, ConfigurationError: as `submit`; nothing was submitted.
    """
    _refuse_event_loop("submit_many()", "await sync_to_async(submit_many)(calls)")
    planned = [_call_of(index, call) for index, call in enumerate(calls)]
    active = runtime.current()
    active.give_back_dropped()
    outcomes: list[JobHandle | Rejected] = []
    reserved: list[tuple[Pool, JobRecord]] = []
    try:
        for job_function, args, kwargs in planned:
            pool = _pool(active, job_function.spec)
            try:
                job_function._check_open(pool, 0)
                record = job_function._record(active, pool, args, kwargs)
                pool.reserve(record)
            except Rejected as refusal:
                outcomes.append(refusal)
            else:
                reserved.append((pool, record))
                outcomes.append(JobHandle(record=record))
        refusals = make_all_durable(active, reserved)
    except BaseException:
        for pool, record in reserved:
            if pool.withdraw(record):
                active.settle(record.id, stored=pool.config.name not in active.memories)
        raise
    refused = {record.id: refusal for (_, record), refusal in zip(reserved, refusals, strict=True) if refusal}
    return [outcome if isinstance(outcome, Rejected) else refused.get(outcome.id, outcome) for outcome in outcomes]


def _call_of(index: int, call: Any) -> tuple[JobFunction[Any, Any], tuple[Any, ...], dict[str, Any]]:
    if isinstance(call, tuple | list) and 2 <= len(call) <= 3:
        function, args, kwargs = (*call, {})[:3]
        if isinstance(function, JobFunction) and isinstance(args, tuple | list) and isinstance(kwargs, dict):
            return function, tuple(args), kwargs
    raise TypeError(f"submit_many: calls[{index}] is {call!r}; give (job, args) or (job, args, kwargs).")


def _say_who_answers(refusal: Rejected) -> None:
    if not isinstance(refusal, InvalidArguments) and MIDDLEWARE not in settings.MIDDLEWARE:
        refusal.add_note(UNANSWERED)


def _until_deadline(pool: Pool, record: JobRecord, seconds: float) -> float:
    """Return how long a wait for a place may last: a job that is past its deadline needs none."""
    if record.deadline_mono is None:
        return seconds
    return min(seconds, max(0.0, record.deadline_mono - pool.clock.monotonic()))


def _works_for(pool: Pool) -> bool:
    here = context.current_job()
    return here is not None and here.pool == pool.config.name


def _set_moments(pool: Pool, record: JobRecord, call: _Call) -> None:
    now, mono = record.submitted, pool.clock.monotonic()
    name = record.spec.name
    record.special = True
    if call.run_after is not None:
        start = call.run_after.seen_from(now)
        if start - now > pool.config.max_defer:
            raise ConfigurationError(
                f"{name}: run_after is {start - now:.0f} s ahead; at most {pool.config.max_defer:g} s (MAX_DEFER) are "
                "taken, since the job holds a place until then. Use a scheduler for what is further away."
            )
        if start > now:
            record.run_after, record.due = start, mono + (start - now)
    if call.deadline is not None:
        end = call.deadline.seen_from(now)
        record.deadline, record.deadline_mono = end, mono + (end - now)
        if record.run_after is not None and end <= record.run_after:
            raise ConfigurationError(f"{name}: its deadline is not later than run_after, so it could never start.")


def _arity(signature: inspect.Signature) -> tuple[int, float]:
    """Return how few and how many positional arguments fit `signature` without a look at their names."""
    fewest, most = 0, 0.0
    for parameter in signature.parameters.values():
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            most += 1
            fewest += parameter.default is parameter.empty
        elif parameter.kind is parameter.VAR_POSITIONAL:
            most = float("inf")
        elif parameter.kind is parameter.KEYWORD_ONLY and parameter.default is parameter.empty:
            return 1, 0  # nothing fits without a keyword
    return fewest, most


def _refuse_event_loop(what: str, instead: str) -> None:
    if _get_running_loop() is None:
        return
    raise SynchronousOnlyOperation(f"{what} would block the event loop; use `{instead}`.")
