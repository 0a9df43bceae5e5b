"""What both pages share: rows that only the pool writes, and lists that stay fast over a million of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.contrib import admin
from django.core.paginator import Paginator
from django.db import models
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.functional import cached_property

from .. import conf
from ..store import writes
from . import rendering

#: Rows that a list can be paged through. Counting further would read the whole table for every page.
MOST_LISTED = 10_000


def moment_column(model: type[models.Model], field: str) -> Callable[[Any, Any], str]:
    """Show a moment with its seconds, which the usual format leaves out and a job's life is made of."""

    @admin.display(description=model._meta.get_field(field).verbose_name)  # type: ignore[union-attr]
    def shown(_admin: Any, row: Any) -> str:
        return rendering.moment(getattr(row, field))

    return shown


# Neither base class can be subscripted at run time.
class CappedPaginator(Paginator):  # type: ignore[type-arg]
    """Counts no further than anybody turns pages."""

    @cached_property
    def count(self) -> int:
        """The number of rows, at most MOST_LISTED."""
        rows: Any = self.object_list
        return int(rows.order_by()[:MOST_LISTED].count())


class ReadOnlyAdmin(admin.ModelAdmin):  # type: ignore[type-arg]
    """Rows that only the pool writes."""

    paginator = CappedPaginator
    show_full_result_count = False
    show_facets = admin.ShowFacets.NEVER  # one count over the table for each choice of each filter
    list_per_page = 50

    class Media:
        css = {"all": ("django_boundedpool/admin.css",)}

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        """Read where the pool writes: a replica lags, and DATABASE may name an alias that no router knows of."""
        options, _faults = conf.process_options()
        return super().get_queryset(request).using(writes.alias_for_write(options.database))

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Nobody adds rows by hand."""
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Nobody changes rows by hand."""
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Rows are deleted by retention."""
        return False
