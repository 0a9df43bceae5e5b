"""Filters of the job list. None asks the database which values there are: that would read the whole table."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _

from .. import conf
from ..engine.states import LIVE, JobState
from ..models import Job


class StateFilter(admin.SimpleListFilter):
    """By the states of the table, and all that are not over."""

    title = _("state")
    parameter_name = "state"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[Any, Any]]:
        """The states that this version gives to jobs."""
        return [("live", _("live")), *(choice for choice in Job.STATES if choice[0] != JobState.HANDED_OVER.value)]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Job]) -> QuerySet[Job]:
        """Keep the chosen state."""
        state = self.value()
        if state == "live":
            return queryset.filter(live=True)
        if state in LIVE:  # the partial index on live rows finds these few among a million
            return queryset.filter(live=True, state=state)
        return _equal(queryset, "state", state)


class PoolFilter(admin.SimpleListFilter):
    """By the pools that the settings name."""

    title = _("pool")
    parameter_name = "pool"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[Any, Any]]:
        """The pools of the settings, and the one that was asked for."""
        configs, _faults = conf.pool_configs()
        names = [*configs, *(name for name in request.GET.getlist("pool")[:1] if name not in configs)]
        return [(name, name) for name in names]

    def has_output(self) -> bool:
        """Shown even for one pool: rows of a pool that was taken out of the settings are still there."""
        return True

    def queryset(self, request: HttpRequest, queryset: QuerySet[Job]) -> QuerySet[Job]:
        """Keep the chosen pool."""
        return _equal(queryset, "pool", self.value())


def _equal(queryset: QuerySet[Job], column: str, value: str | None) -> QuerySet[Job]:
    if value is None:
        return queryset
    # PostgreSQL refuses to compare with a text that it cannot hold.
    return queryset.none() if "\0" in value else queryset.filter(**{column: value})
