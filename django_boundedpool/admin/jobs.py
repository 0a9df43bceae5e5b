"""The list of jobs and the page of one, with a way to cancel."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any
from uuid import UUID

from django.apps import apps
from django.contrib import admin, messages
from django.contrib.auth import get_user_model
from django.core.exceptions import PermissionDenied, ValidationError
from django.db.models import Q, QuerySet
from django.db.models.fields.json import KeyTextTransform, KeyTransform
from django.http import HttpRequest, HttpResponse, HttpResponseNotAllowed, HttpResponseRedirect
from django.urls import NoReverseMatch, path, reverse
from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from ..engine.errors import JobNotFound
from ..engine.states import JobState
from ..handles import JobHandle
from ..models import Job
from . import rendering
from .base import MOST_LISTED, ReadOnlyAdmin, moment_column
from .filters import PoolFilter, StateFilter

#: Columns that may be large; the list never fetches them.
HEAVY = ("args", "kwargs", "result", "error", "first_error", "attempts", "carry")
#: Jobs cancelled by one action; a larger selection is told to repeat.
MOST_CANCELLED = 1000
#: Shown on a job's page only when there is something to show.
OPTIONAL = frozenset(
    {
        "args_withheld",
        "cancel_requested_at_shown",
        "asked_by",
        "deadline_shown",
        "error_shown",
        "failures",
        "first_error_shown",
        "hand_over_alias",
        "hand_over_id",
        "losses",
        "progress_shown",
        "replay_of",
        "result_shown",
        "run_after_shown",
        "start_by_shown",
        "timeout",
        "traceback_shown",
    }
)


@admin.register(Job)
class JobAdmin(ReadOnlyAdmin):
    """Every job, newest first."""

    list_display = ("state_shown", "name_shown", "pool", "owner_key", "submitted", "waited", "ran")
    list_display_links = ("name_shown",)
    list_filter = (StateFilter, PoolFilter)
    search_fields = ("id", "correlation_id")  # see get_search_results
    search_help_text = gettext_lazy(
        "A job's id, or a correlation id. The list ends after %(most)d jobs; filter it for older ones."
    ) % {"most": MOST_LISTED}
    ordering = ("-id",)  # ids are ordered by the moment of the submit
    sortable_by = ()  # every other order would sort the whole table
    actions = ("cancel_selected",)
    fieldsets = (
        (None, {"fields": ("state_shown", "name", "id", "pool", "owner", "progress_shown")}),
        (gettext_lazy("Outcome"), {"fields": ("result_shown", "error_shown", "traceback_shown", "first_error_shown")}),
        (
            gettext_lazy("Times"),
            {
                "fields": (
                    "submitted",
                    "started",
                    "finished",
                    "waited",
                    "ran",
                    "run_after_shown",
                    "start_by_shown",
                    "deadline_shown",
                    "timeout",
                    "cancel_requested_at_shown",
                    "asked_by",
                    "kept_until",
                )
            },
        ),
        (gettext_lazy("Attempts"), {"fields": ("attempt", "max_attempts", "failures", "losses", "attempts_shown")}),
        (
            gettext_lazy("Call"),
            {"fields": ("args_shown", "kwargs_shown", "args_withheld", "payload_bytes", "priority")},
        ),
        (
            gettext_lazy("Belongs to"),
            {
                "fields": (
                    "batch",
                    "correlation_id",
                    "replay_of",
                    "process",
                    "hand_over_alias",
                    "hand_over_id",
                )
            },
        ),
    )
    readonly_fields = tuple(str(field) for _title, options in fieldsets for field in options["fields"])

    # Lists -----------------------------------------------------------------------------------------------------------

    def get_queryset(self, request: HttpRequest) -> QuerySet[Job]:
        """Fetch heavy columns for the page of one job only."""
        first_started = KeyTextTransform("started_at", KeyTransform("0", "attempts"))
        rows: QuerySet[Job] = super().get_queryset(request).annotate(first_started=first_started)
        match = request.resolver_match
        return rows if match is not None and "object_id" in match.kwargs else rows.defer(*HEAVY)

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Job], search_term: str
    ) -> tuple[QuerySet[Job], bool]:
        """Find an id, or a correlation id with all its spaces. A text that is no id is no error."""
        term = search_term.strip()
        if not term:
            return queryset, False
        found = Q(correlation_id=term)
        try:
            found |= Q(pk=UUID(term))
        except ValueError:
            pass
        return queryset.filter(found), False

    # The page of one job ---------------------------------------------------------------------------------------------

    def get_fieldsets(self, request: HttpRequest, obj: Job | None = None) -> Any:
        """Leave out what this job does not have."""
        if obj is None:
            return self.fieldsets
        shown = []
        for title, options in self.fieldsets:
            fields = [field for field in options["fields"] if field not in OPTIONAL or self._has(obj, field)]
            if fields:
                shown.append((title, {**options, "fields": fields}))
        return shown

    @staticmethod
    def _has(job: Job, field: str) -> bool:
        if field == "result_shown":
            return job.state == JobState.SUCCEEDED.value or job.result is not None
        if field == "first_error_shown":
            return bool(job.first_error) and job.first_error != job.error
        if field == "traceback_shown":
            return isinstance(job.error, dict) and bool(job.error.get("traceback"))
        if field == "progress_shown":
            return job.progress is not None
        if field == "asked_by":
            return bool(job.cancel_requested_by)
        return bool(getattr(job, field.removesuffix("_shown")))

    @admin.display(description=gettext_lazy("state"))
    def state_shown(self, job: Job) -> SafeString:
        """State with its reason, and what was asked of it."""
        return rendering.state_badge(job)

    submitted = moment_column(Job, "submitted_at")
    started = moment_column(Job, "started_at")
    finished = moment_column(Job, "finished_at")
    kept_until = moment_column(Job, "retain_until")
    run_after_shown = moment_column(Job, "run_after")
    start_by_shown = moment_column(Job, "start_by")
    deadline_shown = moment_column(Job, "deadline")
    cancel_requested_at_shown = moment_column(Job, "cancel_requested_at")

    @admin.display(description=gettext_lazy("job"))
    def name_shown(self, job: Job) -> SafeString:
        """Dotted name that a narrow column breaks after its dots."""
        return rendering.dotted_name(job.name)

    @admin.display(description=gettext_lazy("owner"))
    def owner(self, job: Job) -> SafeString | str:
        """Whose job it is."""
        return self._user(job.owner_key)

    @admin.display(description=gettext_lazy("cancel requested by"))
    def asked_by(self, job: Job) -> SafeString | str:
        """Who asked it to stop."""
        return self._user(job.cancel_requested_by)

    def _user(self, key: str) -> SafeString | str:
        """Return a user's name with a link to the user's page, as far as there are these; otherwise the key."""
        if not key or not apps.is_installed("django.contrib.auth"):
            return key or rendering.NOTHING
        model: Any = get_user_model()
        try:
            user = model._default_manager.filter(pk=key).first()
        except (ValueError, ValidationError, OverflowError):  # the key of another user model
            user = None
        if user is None:
            return key
        meta = model._meta
        try:
            address = reverse(
                f"admin:{meta.app_label}_{meta.model_name}_change", args=[key], current_app=self.admin_site.name
            )
        except NoReverseMatch:
            return str(user)
        return format_html('<a href="{}">{}</a>', address, user)

    @admin.display(description=gettext_lazy("waited"))
    def waited(self, job: Job) -> str:
        """Time from the submit to the first start, to the end of a job that never started, or to now."""
        end = job.started_at or job.finished_at or timezone.now()
        if job.attempt > 1:
            first = rendering.parsed(getattr(job, "first_started", None))
            if first is None:
                return rendering.NOTHING  # the row itself has the latest start only
            end = first if timezone.is_aware(job.submitted_at) else timezone.make_naive(first)
        return rendering.seconds((end - job.submitted_at).total_seconds())

    @admin.display(description=gettext_lazy("ran"))
    def ran(self, job: Job) -> str:
        """Time from the latest start to the end, or to now."""
        if job.started_at is None or (job.finished_at is None and job.state != JobState.RUNNING.value):
            return rendering.NOTHING  # between two attempts nothing runs
        return rendering.seconds(((job.finished_at or timezone.now()) - job.started_at).total_seconds())

    @admin.display(description=gettext_lazy("progress"))
    def progress_shown(self, job: Job) -> str:
        """What the job last reported."""
        return f"{(job.progress or 0) * 100:.0f} % {job.progress_message}".rstrip()

    @admin.display(description=gettext_lazy("attempts"))
    def attempts_shown(self, job: Job) -> SafeString | str:
        """Every attempt that is kept."""
        return rendering.attempts_table(job.attempts)

    @admin.display(description=gettext_lazy("arguments"))
    def args_shown(self, job: Job) -> SafeString:
        """Positional arguments, as stored."""
        return rendering.json_block(job.args)

    @admin.display(description=gettext_lazy("keyword arguments"))
    def kwargs_shown(self, job: Job) -> SafeString:
        """Keyword arguments, as stored."""
        return rendering.json_block(job.kwargs)

    @admin.display(description=gettext_lazy("result"))
    def result_shown(self, job: Job) -> SafeString:
        """What the job returned."""
        return rendering.json_block(job.result)

    @admin.display(description=gettext_lazy("error"))
    def error_shown(self, job: Job) -> SafeString | str:
        """Type and message of the last error."""
        return rendering.error_line(job.error)

    @admin.display(description=gettext_lazy("first error"))
    def first_error_shown(self, job: Job) -> SafeString | str:
        """Type and message of the first error, where the last one is another."""
        return rendering.error_line(job.first_error)

    @admin.display(description=gettext_lazy("traceback"))
    def traceback_shown(self, job: Job) -> SafeString:
        """Traceback of the last error."""
        return rendering.text_block(str((job.error or {}).get("traceback", "")))

    # Cancelling ------------------------------------------------------------------------------------------------------

    def has_cancel_permission(self, request: HttpRequest) -> bool:
        """Whether the user may cancel any job."""
        return request.user.has_perm("boundedpool.cancel_job")

    @admin.action(description=gettext_lazy("Cancel the selected jobs"), permissions=["cancel"])
    def cancel_selected(self, request: HttpRequest, queryset: QuerySet[Job]) -> None:
        """Ask every selected job to stop, and say what came of it."""
        jobs = list(queryset.filter(live=True).only("name").order_by("id")[: MOST_CANCELLED + 1])
        over = queryset.filter(live=False)[:MOST_LISTED].count()
        self._cancel(request, jobs[:MOST_CANCELLED], over)
        if len(jobs) > MOST_CANCELLED:
            text = ngettext(
                "Only the first %d job was looked at; run the action again for the rest.",
                "Only the first %d jobs were looked at; run the action again for the rest.",
                MOST_CANCELLED,
            )
            self.message_user(request, text % MOST_CANCELLED, messages.WARNING)

    def get_urls(self) -> list[Any]:
        """Add the address that the page's cancel button posts to."""
        view = self.admin_site.admin_view(self.cancel_view)
        return [path("<path:object_id>/cancel/", view, name="boundedpool_job_cancel"), *super().get_urls()]

    def cancel_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Cancel the job of one page."""
        if request.method != "POST":
            return HttpResponseNotAllowed(["POST"])
        if not (self.has_cancel_permission(request) and self.has_view_permission(request)):
            raise PermissionDenied
        job = self.get_object(request, object_id)
        if job is None:
            self.message_user(request, _("There is no such job any more."), messages.WARNING)
            return HttpResponseRedirect(self._address("changelist"))
        self._cancel(request, [job], 0)
        return HttpResponseRedirect(self._address("change", job.pk))

    def _address(self, page: str, *args: Any) -> str:
        return reverse(f"admin:boundedpool_job_{page}", args=args, current_app=self.admin_site.name)

    def render_change_form(self, request: HttpRequest, context: Any, *args: Any, **kwargs: Any) -> HttpResponse:
        """Offer the button where it would do something."""
        job = kwargs.get("obj")
        live = job is not None and not job.terminal
        context["may_cancel"] = live and self.has_cancel_permission(request)
        return super().render_change_form(request, context, *args, **kwargs)

    def _cancel(self, request: HttpRequest, jobs: Iterable[Job], over: int) -> None:
        """Cancel each of `jobs`, note it in the admin's log, and tell the user; `over` more had ended before."""
        noted = {"cancelled": "Cancelled.", "requested": "Asked to stop."}
        answers = Counter({"finished": over})
        for job in jobs:
            try:
                answer = JobHandle.get(job.pk).cancel(by=request.user)
            except JobNotFound:  # pruned since the list was made
                answer = "finished"
            answers[answer] += 1
            if answer in noted:
                self.log_change(request, job, noted[answer])
        text = _("%(cancelled)d cancelled, %(requested)d asked to stop, %(finished)d were over already.")
        counts = {name: answers[name] for name in ("cancelled", "requested", "finished")}
        done = counts["cancelled"] or counts["requested"]
        self.message_user(request, text % counts, messages.SUCCESS if done else messages.WARNING)
