"""Running coroutines as an ASGI server runs views, and watching the loop meanwhile."""

import asyncio
import gc
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

from asgiref.sync import ThreadSensitiveContext, sync_to_async
from django.db import connections


def on_a_loop(main: Callable[..., Awaitable[Any]], *args: Any) -> Any:
    """What `main` returns, run in a thread-sensitive context of its own; asyncio must have nothing to complain of."""
    complaints: list[dict[str, Any]] = []

    async def scope() -> Any:
        asyncio.get_running_loop().set_exception_handler(lambda _, what: complaints.append(what))
        async with ThreadSensitiveContext():
            try:
                return await main(*args)
            finally:
                await sync_to_async(connections.close_all)()

    value = asyncio.run(scope())
    gc.collect()  # an exception that nobody has looked at is reported when its task is thrown away
    assert complaints == []
    return value


class Ticker:
    """Wakes every 10 ms on the loop and keeps the longest time between two wake-ups.

    A thread beside does the same: what it misses as well is the machine's doing, and is left out of `longest`.
    """

    async def __aenter__(self) -> "Ticker":
        self._on_loop = self._beside = 0.0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._tick_beside)
        self._thread.start()
        self._task = asyncio.create_task(self._tick())
        return self

    async def __aexit__(self, *error: object) -> None:
        self._over.set()
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self._thread.join()

    @property
    def longest(self) -> float:
        return self._on_loop - max(0.0, self._beside - 0.011)

    async def _tick(self) -> None:
        last = time.monotonic()
        while True:
            await asyncio.sleep(0.01)
            now = time.monotonic()
            self._on_loop = max(self._on_loop, now - last)
            last = now

    def _tick_beside(self) -> None:
        last = time.monotonic()
        while not self._over.wait(0.01):
            now = time.monotonic()
            self._beside = max(self._beside, now - last)
            last = now


async def eventually(condition: Callable[[], bool], limit: float = 10.0) -> None:
    deadline = time.monotonic() + limit
    while not condition():
        assert time.monotonic() < deadline, "it never came true"
        await asyncio.sleep(0.005)


def until(condition: Callable[[], bool], timeout: float = 10.0) -> None:
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.005)


@contextmanager
def no_collector() -> Iterator[None]:
    """Nothing is collected but by reference count."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
