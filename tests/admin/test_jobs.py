"""The list of jobs and the page of one."""

import re
import uuid
from datetime import timedelta
from html.parser import HTMLParser
from typing import Any

import pytest
from django.contrib import admin
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Permission
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from django_boundedpool import testing
from django_boundedpool.admin import base, jobs, rendering
from django_boundedpool.models import Job
from tests import face_jobs
from tests.rows import EVIL, TRACEBACK, row, row_of_each_state

LIST = "/admin/boundedpool/job/"
HEAVY = ("args", "kwargs", "result", "error", "first_error", "attempts", "carry")


def page_of(job: Job) -> str:
    return f"{LIST}{job.pk}/change/"


def signed_in(user: Any) -> Client:
    client = Client()
    client.force_login(user)
    return client


@pytest.fixture
def client(staff: Any) -> Client:
    return signed_in(staff)


@pytest.fixture
def viewer(db: None) -> Any:
    """A member of staff who may look and nothing else."""
    from django.contrib.auth import get_user_model

    user = get_user_model().objects.create_user("vic", is_staff=True)
    user.user_permissions.add(Permission.objects.get(codename="view_job"))
    return user


class Tags(HTMLParser):
    """The tags, attributes and text that a browser would see."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


def act(client: Client, *ids: object, **more: Any) -> Any:
    chosen = [str(job_id) for job_id in ids]
    return client.post(LIST, {"action": "cancel_selected", "_selected_action": chosen, **more}, follow=True)


def said(answer: Any) -> list[str]:
    return [str(message) for message in answer.context["messages"]]


# Looking -------------------------------------------------------------------------------------------------------------


def test_every_state_is_listed_and_has_a_page(client: Client) -> None:
    rows = row_of_each_state()
    html = client.get(LIST).content.decode()
    for kind in ("queued", "running", "succeeded", "failed", "cancelled", "abandoned", "handed_over", "unknown"):
        assert f'class="bp-badge bp-{kind}"' in html
    for job in rows.values():
        assert str(job.pk) in html
        answer = client.get(page_of(job))
        assert answer.status_code == 200
        assert not re.findall(r"<(?:input|select|textarea)[^>]*name=\"(?!csrf)", answer.content.decode())


def test_a_state_that_this_version_does_not_know_reads_as_not_over(client: Client) -> None:
    job = row("postponed", name="code.that.is.gone")
    text = Tags(client.get(page_of(job)).content.decode()).text
    assert "postponed" in text
    assert "code.that.is.gone" in text
    assert "Cancel job" in text


def test_the_page_shows_data_indented_and_the_traceback_with_its_lines(client: Client) -> None:
    job = row_of_each_state()["failed"]
    html = client.get(page_of(job)).content.decode()
    blocks = re.findall(r'<pre class="bp-data" tabindex="0">(.*?)</pre>', html, re.DOTALL)
    text = [Tags(block).text for block in blocks]
    assert TRACEBACK in text
    assert any('\n  "format": "pdf",\n' in block for block in text)
    assert "timed out" in html  # the first error, since the last is another
    assert html.count("retried") == 2


def test_the_page_names_users_and_links_to_their_own_pages(admin_client: Client, user: Any) -> None:
    job = row("running", owner_key=str(user.pk), cancel_requested_at=timezone.now(), cancel_requested_by="4711")
    html = admin_client.get(page_of(job)).content.decode()
    assert f'<a href="/admin/auth/user/{user.pk}/change/">ann</a>' in html
    assert "4711" in html  # there is no such user
    for key in ("no number", "9" * 60):
        assert key in admin_client.get(page_of(row(owner_key=key))).content.decode()
    assert ">ann<" not in admin_client.get(LIST).content.decode()  # no query per row


def test_a_retried_job_waited_until_its_first_start(client: Client) -> None:
    now = timezone.now()
    started = (now - timedelta(seconds=57.5)).isoformat()
    job = row("queued", submitted_at=now - timedelta(seconds=60), attempt=2, attempts=[{"started_at": started}])
    assert "2.50 s" in client.get(page_of(job)).content.decode()
    assert "2.50 s" in client.get(LIST).content.decode()


def test_moments_are_written_alike(client: Client) -> None:
    moment = timezone.now().replace(microsecond=0) + timedelta(hours=1)
    given = dict.fromkeys(("run_after", "start_by", "deadline", "cancel_requested_at"), moment)
    html = client.get(page_of(row("queued", **given))).content.decode()
    assert html.count(moment.strftime("%Y-%m-%d %H:%M:%S")) == 4


def test_dotted_names_break_after_their_dots_and_underscores(client: Client) -> None:
    row(name="shop.jobs.build_<b>")
    assert "shop.<wbr>jobs.<wbr>build_<wbr>&lt;b&gt;</a>" in client.get(LIST).content.decode()


def test_no_filter_for_a_state_that_no_job_gets_in_this_version(client: Client) -> None:
    assert "handed_over" not in client.get(LIST).content.decode()


def test_what_a_job_does_not_have_is_left_out(client: Client) -> None:
    text = Tags(client.get(page_of(row("queued"))).content.decode()).text
    for label in ("Traceback:", "Result:", "First error:", "Progress:", "Losses:", "Cancel requested at:"):
        assert label not in text


@pytest.mark.parametrize("field", HEAVY)
@pytest.mark.parametrize("value", [None, 7, "text", [1, {"a": None}], {"x": []}, [], {}])
def test_data_of_an_unexpected_shape_is_shown(client: Client, field: str, value: Any) -> None:
    if value is None and field in ("args", "kwargs", "attempts", "carry"):
        return
    job = row("failed", **{field: value})
    assert client.get(page_of(job)).status_code == 200
    assert client.get(LIST).status_code == 200


@pytest.mark.parametrize("job_id", ["nonsense", "a b", "%00", "0", uuid.UUID(int=0), "x" * 300, "_5F_", "é"])
def test_the_page_of_a_job_that_does_not_exist_leads_back(client: Client, job_id: object) -> None:
    answer = client.get(f"{LIST}{job_id}/change/")
    assert answer.status_code == 302
    answer = client.post(f"{LIST}{job_id}/cancel/", follow=True)
    assert said(answer)[-1] == "There is no such job any more."


def test_U05_nothing_that_a_job_stored_becomes_markup(client: Client, staff: Any) -> None:
    data = [EVIL, {EVIL: [EVIL]}]
    error = {"type": EVIL, "message": EVIL, "traceback": EVIL}
    attempt = {"attempt": EVIL, "started_at": EVIL, "ran": EVIL, "outcome": EVIL, "error": error}
    text = {
        "name": EVIL, "pool": EVIL[:50], "owner_key": EVIL, "batch": EVIL, "correlation_id": EVIL,
        "progress_message": EVIL, "cancel_requested_by": EVIL, "hand_over_alias": EVIL[:64], "hand_over_id": EVIL,
    }  # fmt: skip
    jobs = [
        row("failed", reason=EVIL[:32], args=data, kwargs={EVIL: data}, result=data, error=error,
            first_error={**error, "message": "other" + EVIL}, attempts=[attempt], progress=0.5, **text),
        row("running", attempts=EVIL, error=EVIL, first_error=[EVIL], **text),
        row(EVIL[:20], **text),
    ]  # fmt: skip
    clean = len([t for t, _ in Tags(client.get(f"{LIST}?q=nothing").content.decode()).tags if t == "script"])
    addresses = [LIST, f"{LIST}?q=<script>alert(1)</script>", f"{LIST}?pool=<script>alert(1)</script>&state=<b>"]
    addresses += [page_of(job) for job in jobs] + [f"{LIST}{job.pk}/history/" for job in jobs]
    pages = [client.get(address).content.decode() for address in addresses]
    pages.append(act(client, *(job.pk for job in jobs)).content.decode())
    pages.append(client.get(f"{LIST}{jobs[1].pk}/history/").content.decode())
    pages.append(client.get("/admin/").content.decode())
    for html in pages:
        found = Tags(html)
        assert "<script>alert" not in html
        assert not [t for t, _ in found.tags if t == "img" and _.get("src") == "x"]
        assert not [a for _, attributes in found.tags for a in attributes if a.startswith("onerror")]
        assert "8111" not in html  # template syntax is text, never run
    assert sum("alert(1)" in Tags(html).text for html in pages) > 6  # it was there to be seen, as text
    assert len([t for t, _ in Tags(pages[0]).tags if t == "script"]) <= clean + 1  # the list with rows has its own


def test_pages_have_no_inline_script_or_style(client: Client) -> None:
    """As a Content-Security-Policy without 'unsafe-inline' demands."""
    job = row_of_each_state()["running"]
    for address in (LIST, page_of(job), "/admin/boundedpool/process/"):
        for tag, attributes in Tags(client.get(address).content.decode()).tags:
            assert tag != "style"
            assert "style" not in attributes
            assert not [name for name in attributes if name.startswith("on")]
            assert tag != "script" or "src" in attributes or attributes.get("type") == "application/json"


@pytest.mark.fast
def test_the_stylesheet_is_found() -> None:
    from django.contrib.staticfiles import finders

    assert finders.find("django_boundedpool/admin.css")


# The list -------------------------------------------------------------------------------------------------------------


def statements(client: Client, address: str) -> list[str]:
    with CaptureQueriesContext(connection) as queries:
        assert client.get(address).status_code == 200
    return [q["sql"] for q in queries if "boundedpool_job" in q["sql"]]


def test_the_list_fetches_no_heavy_column_and_counts_no_further_than_it_pages(client: Client) -> None:
    for _ in range(3):
        row("succeeded")
    for address in (LIST, f"{LIST}?state=failed", f"{LIST}?state=live&pool=default", f"{LIST}?q=abc"):
        sent = statements(client, address)
        assert len(sent) <= 2
        for sql in sent:
            chosen = sql.split("FROM")[0]
            # Of the attempts one moment is taken out of the JSON, by the database.
            assert not re.findall(rf"\b(?:{'|'.join(set(HEAVY) - {'attempts'})})\b", chosen)
            assert len(re.findall(r"\battempts\b", chosen)) == len(
                re.findall(r"\(+\W*boundedpool_job\W+attempts", chosen)
            )
            assert "COUNT(" not in sql or f"LIMIT {base.MOST_LISTED}" in sql
            assert "DISTINCT" not in sql


def test_the_number_of_queries_does_not_depend_on_the_number_of_rows(client: Client) -> None:
    client.get(LIST)
    row_of_each_state()
    with CaptureQueriesContext(connection) as few:
        client.get(LIST)
    for _ in range(5):
        row_of_each_state()
    with CaptureQueriesContext(connection) as many:
        client.get(LIST)
    assert len(few) == len(many)


def test_the_list_is_paged_to_its_end(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs.JobAdmin, "list_per_page", 2)
    monkeypatch.setattr(base, "MOST_LISTED", 5)
    ids = sorted((row().pk for _ in range(7)), reverse=True)
    shown: list[uuid.UUID] = []
    for number in (1, 2, 3):
        shown += [job.pk for job in client.get(f"{LIST}?p={number}").context["cl"].result_list]
    assert shown == ids[:5]


def listed(client: Client, query: str) -> set[uuid.UUID]:
    answer = client.get(f"{LIST}?{query}")
    assert answer.status_code == 200, query
    return {job.pk for job in answer.context["cl"].result_list}


def test_filters_by_state_and_pool(client: Client) -> None:
    rows = row_of_each_state()
    other = row("queued", pool="reports")
    live = {rows[k].pk for k in ("queued", "running", "asked")}
    assert listed(client, "state=live") == {*live, other.pk}
    assert listed(client, "state=queued") == {rows["queued"].pk, other.pk}
    assert listed(client, "state=failed") == {rows["failed"].pk}
    assert listed(client, "state=handed_over") == {rows["handed_over"].pk}
    assert listed(client, "pool=reports") == {other.pk}  # a pool that the settings do not name (any more)
    assert listed(client, "pool=default&state=running") == {rows["running"].pk, rows["asked"].pk}
    assert listed(client, "state=nonsense") == listed(client, "pool=nonsense") == set()
    assert listed(client, "state=%00") == listed(client, "pool=%00") == set()


def test_the_pool_filter_offers_the_pools_of_the_settings(client: Client, settings: Any) -> None:
    settings.BOUNDED_POOLS = {"reports": {}}
    text = Tags(client.get(LIST).content.decode()).text
    assert "By pool" in text
    assert "reports" in text


def test_searches_by_id_and_correlation_id(client: Client) -> None:
    job = row(correlation_id="request 7f3a  of today")
    row(correlation_id="request")
    for term in (str(job.pk), f"  {job.pk} ", str(job.pk).upper(), job.pk.hex, "request 7f3a  of today"):
        assert [j.pk for j in client.get(LIST, {"q": term}).context["cl"].result_list] == [job.pk]


@pytest.mark.parametrize(
    "term", ["nonsense", "a b c", "'\"", '"unclosed', "01890000", "{}", "%", "é" * 300, "\0", "1 2 \0", "\\", " "]
)
def test_a_search_for_what_is_no_id_is_no_error(client: Client, term: str) -> None:
    row()
    assert client.get(LIST, {"q": term}).status_code == 200


@pytest.mark.parametrize("query", ["o=1", "o=-3.2", "p=99", "p=x", "_facets=True", "all=", "nonsense=1", "id__in=x"])
def test_a_strange_address_is_no_error(client: Client, query: str) -> None:
    row()
    assert client.get(f"{LIST}?{query}", follow=True).status_code == 200


def test_durations_tell_what_is_known() -> None:
    now = timezone.now()
    shown = jobs.JobAdmin(Job, admin.site)
    ago = lambda seconds: now - timedelta(seconds=seconds)  # noqa: E731
    retry = Job(state="queued", submitted_at=ago(60), started_at=ago(50), attempt=2)
    assert (shown.waited(retry), shown.ran(retry)) == ("-", "-")  # waits for its next attempt: nothing runs
    retry.first_started = ago(57.5).isoformat()  # type: ignore[attr-defined]
    assert shown.waited(retry) == "2.50 s"
    over = Job(state="failed", submitted_at=ago(60), started_at=ago(50), finished_at=ago(45.5), attempt=1)
    assert (shown.waited(over), shown.ran(over)) == ("10.00 s", "4.50 s")
    never = Job(state="cancelled", submitted_at=ago(60), finished_at=ago(58))
    assert (shown.waited(never), shown.ran(never)) == ("2.00 s", "-")
    assert [rendering.seconds(v) for v in (0, -1, 59.994, 61, 3725, "x", None, True)] == [
        "0.00 s", "0.00 s", "59.99 s", "1 min 01 s", "1 h 02 min", "-", "-", "-",
    ]  # fmt: skip


def test_a_value_of_many_megabytes_does_not_make_the_page_as_large(client: Client) -> None:
    job = row(result="x" * 3_000_000)
    assert len(client.get(page_of(job)).content) < 300_000


# Nothing is editable --------------------------------------------------------------------------------------------------


def test_nothing_can_be_added_changed_or_deleted(admin_client: Client) -> None:
    job = row("queued")
    assert admin_client.get(f"{LIST}add/").status_code == 403
    assert admin_client.post(f"{LIST}add/", {"name": "x"}).status_code == 403
    assert admin_client.post(page_of(job), {"state": "succeeded"}).status_code == 403
    assert admin_client.post(f"{LIST}{job.pk}/delete/", {"post": "yes"}).status_code == 403
    admin_client.post(LIST, {"action": "delete_selected", "_selected_action": str(job.pk), "post": "yes"})
    job.refresh_from_db()
    assert job.state == "queued"


def test_looking_changes_nothing(client: Client) -> None:
    rows = row_of_each_state()
    before = list(Job.objects.order_by("pk").values())
    for address in (LIST, *(page_of(job) for job in rows.values())):
        client.get(address)
    assert client.get(f"{LIST}{rows['running'].pk}/cancel/").status_code == 405
    assert list(Job.objects.order_by("pk").values()) == before


# Cancelling -----------------------------------------------------------------------------------------------------------


def test_the_action_counts_each_outcome_and_notes_it_in_the_admins_log(
    transactional_db: None, staff: Any, held: None, settings: Any
) -> None:
    settings.BOUNDED_POOLS = {"default": {"WORKERS": 1, "QUEUE_SIZE": 2}}
    client = signed_in(staff)
    running = face_jobs.hold.submit()
    assert face_jobs.started.wait(10)
    waiting = [face_jobs.add.submit(n, 1) for n in range(2)]
    over = row("succeeded")
    answer = act(client, running.id, over.pk, *(h.id for h in waiting))
    assert said(answer) == ["2 cancelled, 1 asked to stop, 1 were over already."]
    face_jobs.release.set()
    testing.join()
    states = {h.id: Job.objects.get(pk=h.id) for h in (running, *waiting)}
    assert [states[h.id].state for h in waiting] == ["cancelled", "cancelled"]
    assert {states[h.id].reason for h in waiting} == {"operator"}
    assert states[running.id].cancel_requested_by == str(staff.pk)
    notes = {(e.object_id, e.change_message, e.user_id) for e in LogEntry.objects.all()}
    assert notes == {(str(running.id), "Asked to stop.", staff.pk)} | {
        (str(h.id), "Cancelled.", staff.pk) for h in waiting
    }
    assert "Asked to stop." in client.get(f"{LIST}{running.id}/history/").content.decode()


def test_the_button_on_the_page_cancels(inline: None, client: Client) -> None:
    job = row("running")
    html = client.get(page_of(job)).content.decode()
    assert f'action="{LIST}{job.pk}/cancel/"' in html
    answer = client.post(f"{LIST}{job.pk}/cancel/", follow=True)
    assert answer.redirect_chain[-1][0] == page_of(job)
    assert said(answer) == ["0 cancelled, 1 asked to stop, 0 were over already."]
    job.refresh_from_db()
    assert job.cancel_reason == "operator"
    assert LogEntry.objects.get().object_repr == str(job)


def test_there_is_no_button_where_it_would_do_nothing(inline: None, client: Client, viewer: Any) -> None:
    assert "Cancel job" not in client.get(page_of(row("succeeded"))).content.decode()
    assert "Cancel job" not in signed_in(viewer).get(page_of(row("running"))).content.decode()


def test_staff_that_may_only_look_cannot_cancel(inline: None, viewer: Any) -> None:
    job = row("running")
    client = signed_in(viewer)
    assert "cancel_selected" not in client.get(LIST).content.decode()
    act(client, job.pk)
    assert client.post(f"{LIST}{job.pk}/cancel/").status_code == 403
    job.refresh_from_db()
    assert job.cancel_requested_at is None
    assert not LogEntry.objects.exists()


def test_without_the_permission_to_look_there_is_nothing(inline: None, db: None) -> None:
    from django.contrib.auth import get_user_model

    job = row("running")
    user = get_user_model().objects.create_user("max", is_staff=True)
    user.user_permissions.add(Permission.objects.get(codename="cancel_job"))
    client = signed_in(user)
    assert client.get(LIST).status_code == client.get(page_of(job)).status_code == 403
    assert client.post(f"{LIST}{job.pk}/cancel/").status_code == 403
    act_answer = client.post(LIST, {"action": "cancel_selected", "_selected_action": [str(job.pk)]})
    assert act_answer.status_code == 403
    assert Client().post(f"{LIST}{job.pk}/cancel/").status_code == 302  # to the login
    job.refresh_from_db()
    assert job.cancel_requested_at is None


def test_cancelling_needs_the_csrf_token(inline: None, staff: Any) -> None:
    job = row("running")
    client = Client(enforce_csrf_checks=True)
    client.force_login(staff)
    assert client.post(f"{LIST}{job.pk}/cancel/").status_code == 403
    assert act(client, job.pk).status_code == 403
    job.refresh_from_db()
    assert job.cancel_requested_at is None


def test_a_large_selection_is_cancelled_in_parts(inline: None, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "MOST_CANCELLED", 2)
    ids = [row("running").pk for _ in range(3)]
    answer = act(client, *ids, select_across="1", index="0")
    assert said(answer)[0] == "0 cancelled, 2 asked to stop, 0 were over already."
    assert "again" in said(answer)[1]
    assert Job.objects.filter(cancel_requested_at__isnull=False).count() == 2


def test_a_job_that_is_pruned_meanwhile_counts_as_over(
    inline: None, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = row("running")
    original = jobs.JobAdmin._cancel

    def prune_first(self: Any, *args: Any) -> None:
        Job.objects.all().delete()
        original(self, *args)

    monkeypatch.setattr(jobs.JobAdmin, "_cancel", prune_first)
    assert said(act(client, job.pk)) == ["0 cancelled, 0 asked to stop, 1 were over already."]
