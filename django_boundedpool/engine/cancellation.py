"""The token that tells a running job to stop."""

from __future__ import annotations

import logging
import os
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


#: Guards the rare operations of every token; a lock in each would cost every job, and most are never asked to stop.
_lock = threading.Lock()


def _forked() -> None:
    global _lock
    _lock = threading.Lock()  # another thread of the parent may have had it


os.register_at_fork(after_in_child=_forked)


class CancelToken:
    """One attempt's stop request. It fires once and keeps its first reason. Safe from any thread.

    A fired token stops nothing by itself: the job's code sees it at `check()` or `sleep()`, or is woken by a callback.
    """

    # Found on the class until somebody sets them: most jobs neither sleep nor have callbacks, nor are asked to stop.
    __slots__ = ("__dict__",)

    #: Why the job was asked to stop, or None.
    reason: Reason | None = None
    #: Whether nobody has used it for anything: then there is nothing to clear.
    untouched = True
    _ended = False
    _event: threading.Event | None = None
    _callbacks: list[Callable[[], object]] | None = None
    _prompt: Callable[[], object] | None = None

    @property
    def fired(self) -> bool:
        """Whether the job was asked to stop."""
        return self.reason is not None

    def fire(self, reason: Reason, patience: float = PATIENCE) -> bool:
        """Ask the job to stop; True if this call was the first.

        Its callbacks run beside, one after another; this call waits for them `patience` seconds at most.
        """
        with _lock:
            if self.reason is not None:
                return False
            self.untouched = False
            self.reason = reason
            callbacks, self._callbacks = self._callbacks, None
            prompt, self._prompt = self._prompt, None
            if self._event is not None:
                self._event.set()
        if prompt is not None:
            prompt()
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
        with _lock:
            if self._event is None:
                self._event = threading.Event()
                if self.reason is not None:
                    self._event.set()
            event = self._event
        event.wait(max(0.0, seconds))
        self.check()

    def on_fire(self, callback: Callable[[], object]) -> None:
        """Call `callback` when the token fires, or at once if it has."""
        with _lock:
            if self.reason is None:
                self.untouched = False
                if self._callbacks is None:
                    self._callbacks = []
                self._callbacks.append(callback)
                return
        self._call(callback)

    def interrupt_by(self, prompt: Callable[[], object]) -> None:
        """Let `prompt`, which never blocks and never raises, be called first of all and by whoever fires the token."""
        with _lock:
            if self.reason is None:
                self.untouched = False
                self._prompt = prompt
                return
        prompt()

    def clear(self) -> None:
        """Forget the callbacks: the attempt has ended, and they may hold clients and frames."""
        self._ended = True
        with _lock:
            callbacks, self._callbacks = self._callbacks, None
            prompt, self._prompt = self._prompt, None
        del callbacks, prompt  # outside the lock: finalizers may run

    def _call(self, callback: Callable[[], object]) -> None:
        try:
            callback()
        except BaseException as error:
            # JobInterrupted and SystemExit too: this may be the timer's, the housekeeper's or the drain's thread.
            if of_signal_handler(error):
                raise
            logger.exception("A cancel callback failed.")
