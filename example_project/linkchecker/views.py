from dataclasses import asdict
from typing import Any

from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.contrib.auth.models import User
from django.core.paginator import Paginator
from django.db import transaction
from django.db.models import Count
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET, require_http_methods, require_POST

from django_boundedpool import accepted

from . import feeder
from .forms import BatchForm, LinkForm
from .models import Batch, Link
from .progress import Progress, look_at, pool_use, sitemap_failure

ROWS_PER_PAGE = 100


class SignedInRequest(HttpRequest):
    """What `login_required` lets through."""

    user: User


@login_required
@require_http_methods(["GET", "HEAD", "POST"])
def index(request: SignedInRequest) -> HttpResponse:
    """The user's batches, and the form for a new one."""
    form = BatchForm(request.POST, request.FILES) if request.method == "POST" else BatchForm()
    if form.is_valid():
        return redirect("linkchecker:batch", _store(request, form).pk)
    batches = Batch.objects.filter(owner=request.user).annotate(links_count=Count("links")).order_by("-pk")
    context = {
        "form": form,
        "link_form": LinkForm(),
        "page": Paginator(batches, 20).get_page(request.GET.get("page")),
        "pool": pool_use(),
    }
    return render(request, "linkchecker/index.html", context, status=400 if form.errors else 200)


@login_required
@require_POST
def check_one(request: SignedInRequest) -> HttpResponse:
    """Check a single link. A full pool is not handled here: OverloadMiddleware answers 503 with Retry-After."""
    form = LinkForm(request.POST)
    if not form.is_valid():
        messages.error(request, "Give one link to check.")
        return redirect("linkchecker:index")
    batch, handle = feeder.check_one(request.user, form.cleaned_data["url"])
    if request.get_preferred_type(["application/json", "text/html"]) == "text/html":
        return redirect("linkchecker:batch", batch.pk)
    # 202 with the address of the job, for programs.
    return accepted(request, handle)


@login_required
@require_GET
@never_cache
def batch(request: SignedInRequest, pk: int) -> HttpResponse:
    """Progress and results of a batch. Without JavaScript the page reloads itself."""
    found = _own_batch(request, pk)
    # A GET that feeds: it only goes on with what the user asked for, and without it a page that has no script would
    # show waiting links for ever.
    progress = look_at(found, feeder.feed(found).refusal)
    return render(request, "linkchecker/batch.html", _context(request, found, progress))


@login_required
@require_GET
@never_cache
def progress(request: SignedInRequest, pk: int) -> HttpResponse:
    """The same as JSON, polled by batch.js."""
    found = _own_batch(request, pk)
    progress = look_at(found, feeder.feed(found).refusal)
    context = _context(request, found, progress)
    return JsonResponse(
        {
            "total": progress.total,
            "done": progress.done,
            "finished": progress.finished,
            "cancelled": progress.cancelled,
            "phase": progress.phase,
            "explanation": progress.explanation,
            "note": context["note"],
            "refusal": progress.refusal and progress.refusal.code,
            "refusals": context["refusals"],
            "poll_after": progress.poll_after,
            "problems": progress.problems,
            "without_result": progress.without_result,
            "bar": progress.bar(),
            "pool": asdict(context["pool"]),
            "rows": [row.as_dict() for row in context["page"]],
            "pages": context["page"].paginator.num_pages,
        }
    )


@login_required
@require_POST
def cancel(request: SignedInRequest, pk: int) -> HttpResponse:
    feeder.cancel(_own_batch(request, pk), by=request.user)
    return redirect("linkchecker:batch", pk)


@login_required
@require_POST
def check_again(request: SignedInRequest, pk: int) -> HttpResponse:
    feeder.check_again(_own_batch(request, pk))
    return redirect("linkchecker:batch", pk)


def _store(request: SignedInRequest, form: BatchForm) -> Batch:
    """Store what the form gives. Only a sitemap's address needs a place in the pool at once."""
    if form.source is None:
        return feeder.check_sitemap(request.user, form.cleaned_data["sitemap"])
    with transaction.atomic():
        batch = Batch.objects.create(owner=request.user, title=form.title, note=form.source.note)
        Link.objects.bulk_create((Link(batch=batch, url=url) for url in form.source.urls), batch_size=200)
    feeder.feed(batch)
    return batch


def _own_batch(request: SignedInRequest, pk: int) -> Batch:
    return get_object_or_404(Batch.objects.select_related("owner"), pk=pk, owner=request.user)


def _context(request: SignedInRequest, found: Batch, progress: Progress) -> dict[str, Any]:
    # Read again: feeding has counted refusals, and the job that reads a sitemap leaves its note here.
    found.refresh_from_db(fields=["refusals", "note", "sitemap_read_at"])
    show = "problems" if request.GET.get("show") == "problems" else "all"
    return {
        "batch": found,
        "progress": progress,
        "note": found.note or (sitemap_failure(found) if progress.finished else ""),
        "refusals": found.refusals,
        "show": show,
        "page": Paginator(progress.select(show), ROWS_PER_PAGE).get_page(request.GET.get("page")),
        "pool": pool_use(),
    }
