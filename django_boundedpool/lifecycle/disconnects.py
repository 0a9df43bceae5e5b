"""Cancels jobs whose client has gone, away from the event loop: callbacks of a job and the database may block."""

from __future__ import annotations

import contextvars
import logging
import threading
from collections import deque
from collections.abc import Iterable
from uuid import UUID

from django.db import connections

from ..engine.pool import Pool
from ..engine.record import JobRecord
from ..engine.states import Reason
from ..store import writes

logger = logging.getLogger("django_boundedpool.jobs")


class Disconnects:
    """One thread at most, however many clients leave at once; it ends when nothing is left to do. Safe from any thread.

    Arguments:
        pools: the pools of this process.
        alias: the database of the jobs.
    """

    def __init__(self, pools: Iterable[Pool], alias: str) -> None:
        self._pools = tuple(pools)
        self._unstored = {pool.config.name for pool in self._pools if pool.config.persist == "memory"}
        self._alias = alias
        self._lock = threading.Lock()
        self._left: deque[tuple[UUID, JobRecord | None]] = deque()
        self._thread: threading.Thread | None = None
        self._working = False

    def cancel(self, job_id: UUID, record: JobRecord | None = None) -> None:
        """Have a job asked to stop soon. Never waits.

        Arguments:
            job_id: the job.
            record: its record, if it is one of this process.
        """
        self._left.append((job_id, record))
        with self._lock:
            if self._working:
                return
            # From an empty context: not in that of the request which has ended.
            target = contextvars.Context().run
            thread = threading.Thread(target=target, args=(self._loop,), name="boundedpool-disconnect", daemon=True)
            try:
                thread.start()
            except RuntimeError:
                logger.exception(
                    "No thread could be started to cancel job %s; the next disconnect tries again.", job_id
                )
                return
            self._thread, self._working = thread, True

    def stop(self, timeout: float = 5.0) -> None:
        """Wait until nothing is left to do."""
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout)

    def _loop(self) -> None:
        try:
            while True:
                with self._lock:
                    if not self._left:
                        self._working = False
                        return
                    job_id, record = self._left.popleft()
                try:
                    self._cancel(job_id, record)
                except Exception:
                    logger.exception("Job %s: its client has gone, but it could not be cancelled.", job_id)
                del record
        finally:
            connections.close_all()

    def _cancel(self, job_id: UUID, record: JobRecord | None) -> None:
        answers = (pool.cancel(job_id, Reason.DISCONNECT) for pool in self._pools)
        answer = next((answer for answer in answers if answer is not None), None)
        elsewhere = record is None and answer is None
        # A job that is over here is not asked by its row, which is about to say how it ended.
        if elsewhere or (answer == "requested" and (record is None or record.spec.pool not in self._unstored)):
            writes.request_cancel(job_id, Reason.DISCONNECT, "", self._alias)
