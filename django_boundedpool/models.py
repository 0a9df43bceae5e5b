"""The rows behind the pool: one per job, one per process that runs pools.

Only the owning process writes a job's row after its INSERT, and only by a guarded UPDATE; see `store.recorder`. Anyone
may write the cancel-request columns, and nothing else.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any, ClassVar

from django.db import models
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from .engine.ids import uuid7
from .engine.states import JobState

#: Longest text that MariaDB can index in every character set.
KEY_LENGTH = 191


class Job(models.Model):
    """One accepted job: one execution of a job function, its attempts included."""

    STATES: ClassVar[list[tuple[str, Any]]] = [
        (JobState.QUEUED.value, _("queued")),
        (JobState.RUNNING.value, _("running")),
        (JobState.SUCCEEDED.value, _("succeeded")),
        (JobState.FAILED.value, _("failed")),
        (JobState.CANCELLED.value, _("cancelled")),
        (JobState.ABANDONED.value, _("abandoned")),
        (JobState.HANDED_OVER.value, _("handed over")),
    ]

    id = models.UUIDField(_("id"), primary_key=True, default=uuid7, editable=False)
    name = models.CharField(_("job"), max_length=255)
    pool = models.CharField(_("pool"), max_length=50)
    # Without `choices`: a newer version may have written a state that this one does not know.
    state = models.CharField(_("state"), max_length=20)
    reason = models.CharField(_("reason"), max_length=32, blank=True, default="")
    live = models.BooleanField(_("live"), default=True)
    priority = models.SmallIntegerField(_("priority"), default=0)
    owner_key = models.CharField(_("owner"), max_length=KEY_LENGTH, blank=True, default="")
    args = models.JSONField(_("arguments"), default=list, blank=True)
    kwargs = models.JSONField(_("keyword arguments"), default=dict, blank=True)
    args_withheld = models.BooleanField(_("arguments withheld"), default=False)
    args_hash = models.CharField(_("hash of the arguments"), max_length=64, blank=True, default="")
    payload_bytes = models.PositiveIntegerField(_("bytes of arguments"), default=0)
    result = models.JSONField(_("result"), null=True, blank=True)
    error = models.JSONField(_("error"), null=True, blank=True)
    first_error = models.JSONField(_("first error"), null=True, blank=True)
    attempts = models.JSONField(_("attempts"), default=list, blank=True)
    attempt = models.PositiveIntegerField(_("attempt"), default=0)
    failures = models.PositiveIntegerField(_("failures"), default=0)
    losses = models.PositiveIntegerField(_("losses"), default=0)
    max_attempts = models.PositiveIntegerField(_("most attempts"), default=1)
    timeout = models.FloatField(_("time-out in seconds"), null=True, blank=True)
    on_lost = models.CharField(_("when lost"), max_length=10, default="abandon")
    at_most_once = models.BooleanField(_("at most once"), default=False)
    progress = models.FloatField(_("progress"), null=True, blank=True)
    progress_message = models.CharField(_("progress message"), max_length=255, blank=True, default="")
    cancel_requested_at = models.DateTimeField(_("cancel requested at"), null=True, blank=True)
    cancel_requested_by = models.CharField(_("cancel requested by"), max_length=KEY_LENGTH, blank=True, default="")
    cancel_reason = models.CharField(_("cancel reason"), max_length=32, blank=True, default="")
    run_after = models.DateTimeField(_("next attempt not before"), null=True, blank=True)
    start_by = models.DateTimeField(_("start not after"), null=True, blank=True)
    deadline = models.DateTimeField(_("deadline"), null=True, blank=True)
    # Null, not empty: SQLite uses a partial index for `= ?` only where its condition is IS NOT NULL.
    batch = models.CharField(_("batch"), max_length=KEY_LENGTH, null=True, blank=True)  # noqa: DJ001
    carry = models.JSONField(_("carried context"), default=dict, blank=True)
    submitted_at = models.DateTimeField(_("submitted at"), default=timezone.now)
    started_at = models.DateTimeField(_("started at"), null=True, blank=True)
    finished_at = models.DateTimeField(_("finished at"), null=True, blank=True)
    retain_until = models.DateTimeField(_("kept until"), null=True, blank=True)
    # Null means released: any live process may adopt the job.
    process = models.UUIDField(_("process"), null=True, blank=True)
    fence = models.PositiveIntegerField(_("fence"), default=1)
    version = models.PositiveIntegerField(_("version"), default=1)
    persist = models.CharField(_("persistence"), max_length=10, default="commit")
    replay_of = models.UUIDField(_("replay of"), null=True, blank=True)
    idempotency_hash = models.CharField(_("idempotency hash"), max_length=64, null=True, blank=True)  # noqa: DJ001 - unique
    idempotency_key = models.CharField(_("idempotency key"), max_length=KEY_LENGTH, blank=True, default="")
    correlation_id = models.CharField(_("correlation id"), max_length=KEY_LENGTH, null=True, blank=True)  # noqa: DJ001
    traceparent = models.CharField(_("trace parent"), max_length=64, blank=True, default="")
    hand_over_alias = models.CharField(_("handed over to"), max_length=64, blank=True, default="")
    hand_over_id = models.CharField(_("id there"), max_length=KEY_LENGTH, blank=True, default="")

    class Meta:
        verbose_name = _("job")
        verbose_name_plural = _("jobs")
        default_permissions = ("view",)
        permissions = (("cancel_job", "Can cancel any job"), ("replay_job", "Can replay jobs"))
        # Measured on three databases: an ordinary index on `state` makes every move slower.
        indexes = (
            models.Index(fields=["live", "submitted_at"], name="boundedpool_live", condition=models.Q(live=True)),
            models.Index(fields=["submitted_at"], name="boundedpool_submitted"),
            models.Index(
                fields=["retain_until"], name="boundedpool_retain", condition=models.Q(retain_until__isnull=False)
            ),
            models.Index(fields=["owner_key", "id"], name="boundedpool_owner"),
            models.Index(
                fields=["correlation_id"],
                name="boundedpool_correlation",
                condition=models.Q(correlation_id__isnull=False),
            ),
            models.Index(fields=["batch"], name="boundedpool_batch", condition=models.Q(batch__isnull=False)),
        )
        constraints = (models.UniqueConstraint(fields=["idempotency_hash"], name="boundedpool_idempotency"),)

    def __str__(self) -> str:
        return f"{self.name} {self.id}"

    @property
    def known_state(self) -> JobState | None:
        """The state, or None when a newer version wrote one that this version does not know."""
        return JobState(self.state) if self.state in JobState._value2member_map_ else None

    @property
    def terminal(self) -> bool:
        """Whether the job is over. A state that this version does not know counts as not over."""
        state = self.known_state
        return state is not None and state.terminal

    @property
    def cancel_requested(self) -> bool:
        """Whether somebody asked a live job to stop."""
        return self.cancel_requested_at is not None and not self.terminal

    @property
    def overdue(self) -> bool:
        """Whether the job's code is still running past its time-out."""
        if self.state != JobState.RUNNING.value or self.timeout is None or self.started_at is None:
            return False
        return timezone.now() > self.started_at + timedelta(seconds=self.timeout)


class Process(models.Model):
    """One process that runs pools, from its first sign of life to its end."""

    id = models.UUIDField(_("boot id"), primary_key=True, editable=False)
    machine = models.CharField(_("machine"), max_length=100, blank=True, default="")
    host = models.CharField(_("host"), max_length=255, blank=True, default="")
    pid = models.PositiveIntegerField(_("process id"), default=0)
    pid_started = models.CharField(_("start of the process id"), max_length=32, blank=True, default="")
    server = models.CharField(_("server"), max_length=100, blank=True, default="")
    release = models.CharField(_("release"), max_length=100, blank=True, default="")
    version = models.CharField(_("version"), max_length=32, blank=True, default="")
    started_at = models.DateTimeField(_("started at"), default=timezone.now)
    heartbeat_at = models.DateTimeField(_("last sign of life"), default=timezone.now)
    stopped_at = models.DateTimeField(_("stopped at"), null=True, blank=True)
    lost_at = models.DateTimeField(_("lost at"), null=True, blank=True)
    stats = models.JSONField(_("figures"), default=dict, blank=True)
    wanted = models.JSONField(_("wanted"), default=dict, blank=True)
    drain_report = models.JSONField(_("drain report"), null=True, blank=True)

    class Meta:
        verbose_name = _("process")
        verbose_name_plural = _("processes")
        default_permissions = ("view",)
        permissions = (("manage_pool", "Can pause, resume and resize pools"),)
        indexes = (models.Index(fields=["heartbeat_at"], name="boundedpool_heartbeat"),)

    def __str__(self) -> str:
        return f"{self.host}:{self.pid}"
