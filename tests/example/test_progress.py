import pytest
from linkchecker.models import Link
from linkchecker.progress import JobFacts, Status, judge, readable_size, readable_time

ACCEPTED, WAITING, DROPPED = Link.Feeding.ACCEPTED, Link.Feeding.WAITING, Link.Feeding.DROPPED


def job(state: str, reason: str = "", *, attempt: int = 0, stopping: bool = False) -> JobFacts:
    return JobFacts(state, reason, attempt, stopping)


@pytest.mark.parametrize(
    ("link", "facts", "status", "detail"),
    [
        (Link(feeding=WAITING), None, Status.WAITING, ""),
        (Link(feeding=DROPPED), None, Status.CANCELLED, "before it got a place"),
        (Link(feeding=ACCEPTED), job("queued"), Status.QUEUED, ""),
        (Link(feeding=ACCEPTED), job("running", attempt=1), Status.RUNNING, ""),
        (Link(feeding=ACCEPTED), job("running", attempt=1, stopping=True), Status.RUNNING, "stopping"),
        (
            Link(feeding=ACCEPTED, detail="HTTP 503"),
            job("queued", attempt=1),
            Status.RETRYING,
            "HTTP 503, after attempt 1",
        ),
        (
            Link(feeding=ACCEPTED, detail="HTTP 503"),
            job("failed", "attempts_exhausted", attempt=3),
            Status.NO_ANSWER,
            "HTTP 503 (3 attempts)",
        ),
        (Link(feeding=ACCEPTED), job("failed", "timeout", attempt=1), Status.NO_ANSWER, "timeout"),
        (Link(feeding=ACCEPTED), job("cancelled", "user"), Status.CANCELLED, "while queued"),
        (Link(feeding=ACCEPTED), job("cancelled", "user", attempt=1), Status.CANCELLED, "while running"),
        (Link(feeding=ACCEPTED), job("abandoned", "drain_deadline"), Status.LOST, "server stopped"),
        (Link(feeding=ACCEPTED), job("abandoned", "process_lost"), Status.LOST, "server process was lost"),
        (Link(feeding=ACCEPTED), None, Status.LOST, "the record of its job has expired"),
        (Link(feeding=ACCEPTED), job("a state of a newer version"), Status.QUEUED, ""),
        (Link(feeding=ACCEPTED, outcome="ok", detail="HTTP 200 OK"), job("running"), Status.OK, "HTTP 200 OK"),
        (Link(feeding=ACCEPTED, outcome="broken", detail="HTTP 404"), None, Status.BROKEN, "HTTP 404"),
        (Link(feeding=ACCEPTED, outcome="refused"), job("abandoned", "process_lost"), Status.REFUSED, ""),
    ],
)
def test_status_comes_from_the_link_and_its_job(
    link: Link, facts: JobFacts | None, status: Status, detail: str
) -> None:
    assert judge(link, facts) == (status, detail)


def test_figures_are_readable() -> None:
    assert [readable_size(size) for size in (0, 1023, 1024, 1536, 1048576)] == [
        "0 B",
        "1023 B",
        "1.0 KiB",
        "1.5 KiB",
        "1.0 MiB",
    ]
    assert [readable_time(seconds) for seconds in (0.0034, 0.25, 1, 12.34)] == ["3 ms", "250 ms", "1.0 s", "12.3 s"]
