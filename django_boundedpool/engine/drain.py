"""Ending the work of every pool of a process within one deadline."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from uuid import UUID

from .pool import Pool
from .report import DrainReport

logger = logging.getLogger("django_boundedpool.drain")

#: How often a waiting drain looks whether it was told to hurry: a signal handler may only set flags. Seconds.
LOOK = 0.05
#: How often a waiting drain says how far it is. Seconds.
REPORT = 5.0


def drain(
    pools: Sequence[Pool],
    *,
    reason: str,
    began: Callable[[], float | None],
    hurry: Callable[[], bool],
    flush: Callable[[float], bool],
) -> DrainReport:
    """Close admission, let work end, interrupt, give up, and write down how every job ended.

    Arguments:
        pools: pools of this process.
        reason: what began the drain.
        began: returns the monotonic moment from which each pool's DRAIN_TIMEOUT counts, or None as long as nothing
            limits the drain; asked again and again, since a signal may come later.
        hurry: whether to stop waiting and only persist.
        flush: writes what is pending within the given seconds and says whether it could.

    Runs in the calling thread until everything is over. What is raised while it waits (a KeyboardInterrupt, another
    handler's SystemExit) ends the waiting, not the persisting.
    """
    started = time.monotonic()
    me = threading.current_thread()
    hurried = False
    interrupted: set[str] = set()
    since = began()
    for pool in pools:
        pool.begin_drain(None if since is None else since + pool.config.give_up_after)
    queued, running = (sum(pool.gauges()[i] for pool in pools) for i in (0, 1))
    limit = max((pool.config.drain_timeout for pool in pools), default=0.0)
    if queued or running:
        until = "no deadline" if since is None else f"at most {max(0.0, since + limit - started):.1f} s left"
        logger.info("Drain (%s): %d queued, %d running, %s.", reason, queued, running, until)
    waiting = list(pools)
    said = started
    try:
        while waiting and not hurried:
            now = time.monotonic()
            if since is None and (since := began()) is not None:
                for pool in waiting:
                    pool.begin_drain(since + pool.config.give_up_after)
            if since is not None:
                for pool in waiting:
                    if now >= since + pool.config.interrupt_after and pool.config.name not in interrupted:
                        interrupted.add(pool.config.name)
                        pool.interrupt()
            waiting = [
                pool
                for pool in waiting
                if not (since is not None and now >= since + pool.config.give_up_after)
                and not pool.wait_empty(0, beside=me)
            ]
            if waiting:
                waiting[0].wait_empty(LOOK, beside=me)
                if now - said >= REPORT:
                    said = now
                    queued, running = (sum(pool.gauges()[i] for pool in waiting) for i in (0, 1))
                    logger.info("Drain (%s): %d queued, %d running.", reason, queued, running)
            hurried = hurry()
    except BaseException:
        logger.warning("Drain (%s) was interrupted while it waited.", reason, exc_info=True)
        hurried = True
    for pool in pools:
        pool.give_up()
    flush_limit = 1.0 if hurried else 60.0 if since is None else max(0.5, since + limit - time.monotonic())
    flushed = flush(flush_limit)
    outcomes: dict[str, list[UUID]] = {}
    for pool in pools:
        for outcome, ids in pool.drain_outcomes().items():
            outcomes.setdefault(outcome, []).extend(ids)
    report = DrainReport(
        reason=reason,
        seconds=time.monotonic() - started,
        deadline=None if since is None else limit,
        outcomes=outcomes,
        flushed=flushed,
        hurried=hurried,
    )
    if outcomes or not flushed:
        level = logging.INFO if flushed and not hurried else logging.WARNING
        logger.log(
            level, "Drain (%s) over after %.1f s: %s%s.", reason, report.seconds, report.counts() or "nothing left",
            "" if flushed else "; not everything could be written",
        )  # fmt: skip
    return report
