"""The token that tells a running job to stop."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from .errors import JobInterrupted
from .states import Reason

logger = logging.getLogger("django_boundedpool.engine")

#: How long whoever asks a job to stop waits for its callbacks. Seconds.
PATIENCE = 0.1


def of_signal_handler(error: BaseException) -> bool:
    """Whether `error` may come from a signal handler rather than from the code that was called."""
    return isinstance(error, SystemExit | KeyboardInterrupt) and threading.current_thread() is threading.main_thread()


class CancelToken:
    """One attempt's stop request. It fires once and keeps its first reason. Safe from any thread.

    A fired token stops nothing by itself: the job's code sees it at `check()` or `sleep()`, or is woken by a callback.
    """

    __slots__ = ("_callbacks", "_ended", "_event", "_lock", "reason")

    def __init__(self) -> None:
        self.reason: Reason | None = None
        self._lock = threading.Lock()
        self._ended = False
        self._event: threading.Event | None = None  # made by the first sleep: most jobs never sleep
        self._callbacks: list[Callable[[], object]] = []

    @property
    def fired(self) -> bool:
        """Whether the job was asked to stop."""
        return self.reason is not None

    def fire(self, reason: Reason, patience: float = PATIENCE) -> bool:
        """Ask the job to stop; True if this call was the first.

        Its callbacks run beside, one after another; this call waits for them `patience` seconds at most.
        """
        with self._lock:
            if self.reason is not None:
                return False
            self.reason = reason
            callbacks, self._callbacks = self._callbacks, []
            if self._event is not None:
                self._event.set()
        if callbacks:
            self._call_beside(callbacks, patience)
        return True

    def _call_beside(self, callbacks: list[Callable[[], object]], patience: float) -> None:
        """Run callbacks in a thread of their own: one that blocks must not hold up the timer, a drain or a request."""

        def run() -> None:
            for callback in callbacks:
                if self._ended:
                    return  # the attempt is over: what is left could only hit whoever came after it
                self._call(callback)

        thread = threading.Thread(target=run, name="boundedpool-cancel", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # the system has none, or a Python that starts none while it ends
            run()
            return
        thread.join(patience)

    def check(self) -> None:
        """Raise `JobInterrupted` if the token has fired."""
        if self.reason is not None:
            raise JobInterrupted(self.reason)

    def sleep(self, seconds: float) -> None:
        """Sleep, but raise `JobInterrupted` at once when the token fires."""
        self.check()
        with self._lock:
            if self._event is None:
                self._event = threading.Event()
                if self.reason is not None:
                    self._event.set()
            event = self._event
        event.wait(max(0.0, seconds))
        self.check()

    def on_fire(self, callback: Callable[[], object]) -> None:
        """Call `callback` when the token fires, or at once if it has."""
        with self._lock:
            if self.reason is None:
                self._callbacks.append(callback)
                return
        self._call(callback)

    def clear(self) -> None:
        """Forget the callbacks: the attempt has ended, and they may hold clients and frames."""
        self._ended = True
        with self._lock:
            callbacks, self._callbacks = self._callbacks, []
        del callbacks  # outside the lock: finalizers may run

    def _call(self, callback: Callable[[], object]) -> None:
        try:
            callback()
        except BaseException as error:
            # JobInterrupted and SystemExit too: this may be the timer's, the housekeeper's or the drain's thread.
            if of_signal_handler(error):
                raise
            logger.exception("A cancel callback failed.")
