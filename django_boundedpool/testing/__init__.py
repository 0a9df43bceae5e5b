"""Help for the tests of a host project."""

from __future__ import annotations

from ..lifecycle import runtime


def reset() -> None:
    """End every pool of this process: give up what is left, join its threads, close their connections.

    Call it after each test that submitted jobs without INLINE, so that the next test starts afresh and the test
    database can be dropped. The next submit builds new pools from the settings of that moment.

    Raises:
        RuntimeError: a job still runs although it was asked to stop; let it end first.
    """
    active = runtime.forget()
    if active is not None:
        active.close()


def join(timeout: float = 10.0) -> None:
    """Wait until every accepted job is over and its row is written.

    Arguments:
        timeout: longest wait in seconds.

    Raises:
        TimeoutError: jobs are left after `timeout`.
    """
    active = runtime.peek()
    if active is None:
        return
    active.give_back_dropped()
    for pool in active.pools.values():
        if not pool.wait_empty(timeout):
            raise TimeoutError(f"Pool {pool.config.name!r} still has work after {timeout:g} s: {pool.stats()}.")
    if not active.recorder.flush(timeout):
        raise TimeoutError(f"States are still unwritten after {timeout:g} s.")
