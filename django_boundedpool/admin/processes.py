"""The processes that run pools."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta

from django.contrib import admin
from django.utils import timezone
from django.utils.html import format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from .. import conf
from ..models import Process
from . import rendering
from .base import ReadOnlyAdmin, moment_column


@admin.register(Process)
class ProcessAdmin(ReadOnlyAdmin):
    """Every process of the last days, the most recently seen first."""

    list_display = ("__str__", "status", "server", "release", "started", "heartbeat", "figures")
    ordering = ("-heartbeat_at",)
    sortable_by = ()
    fieldsets = (
        (None, {"fields": ("status", "id", "host", "pid", "server", "release", "version")}),
        (gettext_lazy("Times"), {"fields": ("started", "heartbeat", "stopped", "lost")}),
        (gettext_lazy("Pools"), {"fields": ("stats_shown", "report_shown")}),
    )
    readonly_fields = tuple(str(field) for _title, options in fieldsets for field in options["fields"])

    started = moment_column(Process, "started_at")
    heartbeat = moment_column(Process, "heartbeat_at")
    stopped = moment_column(Process, "stopped_at")
    lost = moment_column(Process, "lost_at")

    @admin.display(description=gettext_lazy("status"))
    def status(self, process: Process) -> SafeString:
        """Whether it runs, is overdue for a sign of life, stopped in good order or was lost."""
        if process.lost_at is not None:
            return rendering.badge("failed", _("lost"))
        if process.stopped_at is not None:
            return rendering.badge("cancelled", _("stopped"))
        options, _faults = conf.process_options()
        if timezone.now() - process.heartbeat_at > timedelta(seconds=options.lost_after):
            return rendering.badge("abandoned", _("silent"))
        return rendering.badge("succeeded", _("alive"))

    @admin.display(description=gettext_lazy("pools"))
    def figures(self, process: Process) -> SafeString | str:
        """Busy workers and queue of each pool, as of the last sign of life."""
        stats = process.stats if isinstance(process.stats, Mapping) else {}
        lines = [
            (
                _("%(name)s: %(running)s of %(workers)s busy, %(queued)s of %(queue_size)s queued")
                % {
                    "name": name,
                    **{key: pool.get(key, "?") for key in ("running", "workers", "queued", "queue_size")},
                },
            )
            for name, pool in sorted(stats.items())
            if isinstance(pool, Mapping)
        ]
        return format_html_join("", '<div class="bp-line">{}</div>', lines) or rendering.NOTHING

    @admin.display(description=gettext_lazy("figures"))
    def stats_shown(self, process: Process) -> SafeString:
        """All figures of the last sign of life."""
        return rendering.json_block(process.stats)

    @admin.display(description=gettext_lazy("drain report"))
    def report_shown(self, process: Process) -> SafeString | str:
        """What became of its jobs when it stopped."""
        return rendering.json_block(process.drain_report) if process.drain_report else rendering.NOTHING
