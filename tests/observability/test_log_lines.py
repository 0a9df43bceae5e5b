"""What is logged, and what never is."""

import logging
from typing import Any

import pytest

from django_boundedpool import InvalidArguments, QueueFull, testing
from django_boundedpool.engine.events import Event, Kind
from django_boundedpool.engine.states import JobState, Reason
from django_boundedpool.observability import log_lines
from tests import face_jobs

FIELDS = {
    "pool", "job_id", "job_name", "attempt", "code", "state", "reason", "waited", "ran", "delay", "error",
}  # fmt: skip
NAME = "django_boundedpool.jobs"


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Any:
    with caplog.at_level(logging.DEBUG, logger="django_boundedpool"):
        yield lambda: [r for r in caplog.records if r.name == NAME]


def test_a_final_failure_is_an_error_with_its_exception(inline: None, lines: Any) -> None:
    handle = face_jobs.fail.submit()
    (line,) = [r for r in lines() if r.levelno >= logging.WARNING]
    assert line.levelname == "ERROR"
    assert line.exc_info[0] is ValueError
    assert "in fail" in logging.Formatter().format(line)
    assert line.boundedpool["job_id"] == str(handle.id)
    assert (line.boundedpool["state"], line.boundedpool["reason"]) == ("failed", "error")


def test_a_retried_attempt_is_a_warning_and_the_last_one_an_error(inline: None, lines: Any) -> None:
    face_jobs.fail_twice.submit()
    first, last = [r for r in lines() if r.levelno >= logging.WARNING]
    assert (first.levelname, last.levelname) == ("WARNING", "ERROR")
    assert first.exc_info is None
    assert (first.boundedpool["error"], first.boundedpool["attempt"]) == ("ConnectionError", 1)
    assert face_jobs.SECRET not in first.getMessage()
    assert last.boundedpool["attempt"] == 2
    assert last.exc_info[0] is ConnectionError


def test_success_and_refusal_are_quiet(transactional_db: None, held: None, lines: Any, settings: Any) -> None:
    settings.BOUNDED_POOLS = {"default": {"WORKERS": 1, "QUEUE_SIZE": 0}}
    face_jobs.hold.submit()
    with pytest.raises(QueueFull):
        face_jobs.add.submit(1, 2)
    face_jobs.release.set()
    testing.join()
    assert [r.levelname for r in lines() if r.levelno > logging.DEBUG] == []
    assert [r.boundedpool["code"] for r in lines() if r.message.startswith("job_rejected")] == ["queue_full"]


def test_A03_arguments_and_results_are_in_no_line(inline: None, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        face_jobs.echo.submit("s3cret-argument", password="s3cret-password").cancel()
        with pytest.raises(InvalidArguments):
            face_jobs.echo.submit({"s3cret": object()})
    formatter = logging.Formatter()
    ours = [formatter.format(r) for r in caplog.records if r.name.startswith("django_boundedpool")]
    assert ours
    assert "s3cret" not in "".join(ours)


@pytest.mark.fast
@pytest.mark.parametrize("kind", Kind)
def test_every_event_has_the_same_fields(kind: Kind, lines: Any) -> None:
    log_lines.on_event(Event(kind=kind, pool="default"))
    (line,) = lines()
    assert set(line.boundedpool) == FIELDS
    assert line.getMessage().split()[:2] == [kind.value, "pool=default"]


@pytest.mark.fast
@pytest.mark.parametrize(
    ("state", "level"),
    [(JobState.FAILED, "ERROR"), (JobState.ABANDONED, "WARNING"), (JobState.CANCELLED, "DEBUG")],
)
def test_the_level_tells_how_it_ended(state: JobState, level: str, lines: Any) -> None:
    log_lines.on_event(Event(kind=Kind.JOB_FINISHED, pool="default", state=state, reason=Reason.NONE))
    assert [r.levelname for r in lines()] == [level]


@pytest.mark.fast
def test_a_level_that_is_off_costs_no_line(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR, logger=NAME):
        log_lines.on_event(Event(kind=Kind.JOB_STARTED, pool="default"))
    assert not caplog.records
