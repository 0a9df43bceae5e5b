"""The admin: look at jobs and processes, cancel jobs. Nothing is editable."""

from __future__ import annotations

from typing import Any

from django.contrib import admin, messages
from django.contrib.admin.models import CHANGE, LogEntry
from django.contrib.contenttypes.models import ContentType
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.utils import timezone
from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext

from ..engine.errors import JobNotFound
from ..handles import JobHandle
from ..models import Job, Process

#: Columns that may be large; the list never fetches them.
HEAVY = ("args", "kwargs", "result", "error", "first_error", "attempts", "carry")
#: Jobs cancelled by one action; a larger selection is told to repeat.
MOST = 1000


class ReadOnlyAdmin(admin.ModelAdmin):  # type: ignore[type-arg] - the class is not subscriptable at run time
    """Rows that only the pool writes."""

    show_full_result_count = False  # counting a million rows would make the list slow

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Nobody adds rows by hand."""
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Nobody changes rows by hand."""
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Rows are deleted by retention."""
        return False


class StateFilter(admin.SimpleListFilter):
    """Filter by the states of the table, without asking the database which there are."""

    title = _("state")
    parameter_name = "state"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        """The states of the table."""
        return [("live", _("live")), *Job.STATES]  # type: ignore[list-item]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Job]) -> QuerySet[Job]:
        """Keep the chosen state."""
        if self.value() == "live":
            return queryset.filter(live=True)
        return queryset.filter(state=self.value()) if self.value() else queryset


@admin.register(Job)
class JobAdmin(ReadOnlyAdmin):
    """Every job, newest first."""

    list_display = ("name", "state_shown", "pool", "owner_key", "attempt", "submitted_at", "waited", "ran")
    list_filter = (StateFilter, "pool")
    search_fields = ("id__exact", "correlation_id__exact")
    search_help_text = _("A job's id or a correlation id.")
    ordering = ("-id",)  # ids are ordered by the moment of the submit
    list_per_page = 50
    actions = ("cancel_selected",)
    fieldsets = (
        (None, {"fields": ("id", "name", "pool", "state_shown", "cancel_requested_at", "cancel_requested_by")}),
        (
            _("Times"),
            {"fields": ("submitted_at", "started_at", "finished_at", "waited", "ran", "run_after", "retain_until")},
        ),
        (_("Attempts"), {"fields": ("attempt", "failures", "losses", "max_attempts", "timeout", "attempts")}),
        (_("Call"), {"fields": ("args", "kwargs", "args_withheld", "payload_bytes", "priority")}),
        (_("Outcome"), {"fields": ("progress", "progress_message", "result", "error_shown", "traceback")}),
        (_("Belongs to"), {"fields": ("owner_key", "batch", "correlation_id", "process", "fence", "version")}),
    )

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> list[str]:
        """Everything."""
        return [field for _title, options in self.fieldsets for field in options["fields"]]

    def get_queryset(self, request: HttpRequest) -> QuerySet[Job]:
        """Leave heavy columns out of the list."""
        rows: QuerySet[Job] = super().get_queryset(request)
        match = request.resolver_match
        return rows.defer(*HEAVY) if match and (match.url_name or "").endswith("changelist") else rows

    @admin.display(description=_("state"), ordering="state")
    def state_shown(self, job: Job) -> str:
        """State with its reason, and what was asked of it."""
        text = f"{job.state} ({job.reason})" if job.reason else job.state
        if job.cancel_requested:
            text += ", cancel requested"
        return f"{text}, overdue" if job.overdue else text

    @admin.display(description=_("waited"))
    def waited(self, job: Job) -> str:
        """Time from the submit to the latest start, or to now."""
        end = job.started_at or job.finished_at or timezone.now()
        return f"{max(0.0, (end - job.submitted_at).total_seconds()):.2f} s"

    @admin.display(description=_("ran"))
    def ran(self, job: Job) -> str:
        """Time from the latest start to the end, or to now."""
        if job.started_at is None:
            return "-"
        end = job.finished_at or timezone.now()
        return f"{max(0.0, (end - job.started_at).total_seconds()):.2f} s"

    @admin.display(description=_("error"))
    def error_shown(self, job: Job) -> str:
        """Type and message of the last error."""
        return f"{job.error.get('type', '')}: {job.error.get('message', '')}" if job.error else "-"

    @admin.display(description=_("traceback"))
    def traceback(self, job: Job) -> str:
        """Traceback of the last error, escaped and with its lines kept."""
        return (job.error or {}).get("traceback") or "-"

    def has_cancel_permission(self, request: HttpRequest) -> bool:
        """Whether the user may cancel any job."""
        return request.user.has_perm("boundedpool.cancel_job")

    @admin.action(description=_("Cancel the selected jobs"), permissions=["cancel"])
    def cancel_selected(self, request: HttpRequest, queryset: QuerySet[Job]) -> HttpResponse | None:
        """Ask every selected job to stop, and say what came of each."""
        answers = {"cancelled": 0, "requested": 0, "finished": 0}
        ids = list(queryset.filter(live=True).order_by("id").values_list("pk", flat=True)[: MOST + 1])
        over = queryset.exclude(live=True).count() if len(ids) <= MOST else 0
        done: list[Any] = []
        for job_id in ids[:MOST]:
            try:
                answer = JobHandle.get(job_id).cancel(by=request.user)
            except JobNotFound:
                answer = "finished"
            answers[answer] += 1
            if answer != "finished":
                done.append(job_id)
        answers["finished"] += over
        content_type = ContentType.objects.get_for_model(Job)
        for job_id in done:
            LogEntry.objects.create(
                user_id=request.user.pk,
                content_type=content_type,
                object_id=str(job_id),
                object_repr=str(job_id),
                action_flag=CHANGE,
                change_message="Cancelled in the admin.",
            )
        text = _("%(cancelled)d cancelled, %(requested)d asked to stop, %(finished)d were over already.") % answers
        self.message_user(request, text, messages.SUCCESS if done else messages.WARNING)
        if len(ids) > MOST:
            more = ngettext("Only the first %d job was looked at; run the action again for the rest.",
                            "Only the first %d jobs were looked at; run the action again for the rest.", MOST) % MOST  # fmt: skip
            self.message_user(request, more, messages.WARNING)
        return None


@admin.register(Process)
class ProcessAdmin(ReadOnlyAdmin):
    """The processes that run pools."""

    list_display = ("__str__", "server", "alive", "started_at", "heartbeat_at", "stopped_at", "lost_at", "figures")
    ordering = ("-heartbeat_at",)

    @admin.display(description=_("alive"), boolean=True)
    def alive(self, process: Process) -> bool:
        """Whether it has neither stopped nor been lost."""
        return process.stopped_at is None and process.lost_at is None

    @admin.display(description=_("pools"))
    def figures(self, process: Process) -> str:
        """Busy workers and queue of each pool, as of the last heartbeat."""
        parts = []
        for name, pool in sorted(process.stats.items()):
            parts.append(
                f"{name}: {pool['running']}/{pool['workers']} busy, {pool['queued']}/{pool['queue_size']} queued"
            )
        return "; ".join(parts) or "-"
