"""`manage.py boundedpool prune`."""

import io
import subprocess
import sys
import threading
from datetime import timedelta
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import OperationalError, connection
from django.utils import timezone

from django_boundedpool.models import Job
from django_boundedpool.store import retention
from tests.rows import TERMINAL, row


def prune(*words: str, **options: Any) -> str:
    out = io.StringIO()
    call_command("boundedpool", "prune", *words, stdout=out, **options)
    return out.getvalue()


def expired(count: int = 1, state: str = "succeeded") -> None:
    past = timezone.now() - timedelta(hours=1)
    for number in range(count):
        row(state, retain_until=past - timedelta(seconds=number))


def test_expired_rows_of_every_state_go_and_all_others_stay(db: None) -> None:
    for state in TERMINAL:
        expired(2, state)
    kept = {row(state).pk for state in (*TERMINAL, "queued", "running", "handed_over", "postponed")}
    assert prune() == "8 rows deleted.\n"
    assert set(Job.objects.values_list("pk", flat=True)) == kept
    assert prune() == "0 rows deleted.\n"


def test_a_live_row_is_never_deleted_however_old(db: None) -> None:
    past = timezone.now() - timedelta(days=400)
    live = {row(state, submitted_at=past).pk for state in ("queued", "running", "postponed")}
    prune()
    assert set(Job.objects.values_list("pk", flat=True)) == live


def test_a_dry_run_only_counts(db: None) -> None:
    expired(3)
    assert prune("--dry-run") == "3 rows would be deleted.\n"
    assert prune(dry_run=True) == "3 rows would be deleted.\n"
    assert Job.objects.count() == 3


def test_the_batch_bounds_each_transaction(db: None, monkeypatch: pytest.MonkeyPatch) -> None:
    expired(7)
    sizes: list[int] = []
    original = retention.prune

    def watched(*args: Any, **kwargs: Any) -> Any:
        for size in original(*args, **kwargs):
            sizes.append(size)
            yield size

    monkeypatch.setattr(retention, "prune", watched)
    assert prune("--batch", "3") == "7 rows deleted.\n"
    assert sizes == [3, 3, 1]


def test_a_spent_budget_says_what_is_left(db: None) -> None:
    expired(5)
    assert prune("--budget", "0.0000001") == "0 rows deleted; 5 are left for the next run.\n"


@pytest.mark.parametrize(
    "words",
    [("--batch", "0"), ("--batch", "-1"), ("--batch", "x"), ("--budget", "0"), ("--budget", "-1"), ("--budget", "nan"),
     ("--budget", "inf"), ("--budget", "x"), ("--nonsense",)],
)  # fmt: skip
def test_wrong_arguments_are_refused_and_delete_nothing(db: None, words: tuple[str, ...]) -> None:
    expired(1)
    with pytest.raises(CommandError):
        prune(*words)
    assert Job.objects.count() == 1


def test_a_subcommand_must_be_given(db: None) -> None:
    with pytest.raises(CommandError):
        call_command("boundedpool")


def test_settings_that_cannot_work_are_an_error_without_a_traceback(db: None, settings: Any) -> None:
    settings.BOUNDED_POOLS = {"default": {"WORKERS": 0}}
    with pytest.raises(CommandError, match="WORKERS"):
        prune()


def test_a_database_that_is_not_there_is_an_error_without_a_traceback(db: None, settings: Any) -> None:
    settings.BOUNDED_POOL_OPTIONS = {"DATABASE": "nowhere"}
    with pytest.raises(CommandError, match="nowhere"):
        prune()


def test_a_database_that_fails_is_an_error_without_a_traceback(db: None, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: Any, **kwargs: Any) -> Any:
        raise OperationalError("the server has gone away")

    monkeypatch.setattr(retention, "prune", fail)
    with pytest.raises(CommandError, match="gone away"):
        prune()


def test_progress_is_shown_on_a_terminal_only(db: None) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    expired(3)
    out = Terminal()
    call_command("boundedpool", "prune", "--batch", "2", stdout=out, no_color=True)
    assert out.getvalue() == "\r2 rows deleted\r3 rows deleted\r3 rows deleted.\n"


def test_several_at_once_delete_every_row_once(transactional_db: None) -> None:
    expired(120)
    kept = [row("queued").pk, row("succeeded").pk]
    barrier = threading.Barrier(4)
    faults: list[BaseException] = []

    def work() -> None:
        try:
            barrier.wait(10)
            prune("--batch", "7")
        except BaseException as error:
            faults.append(error)
        finally:
            connection.close()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert faults == []
    assert set(Job.objects.values_list("pk", flat=True)) == set(kept)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "code"),
    [(["prune"], 0), (["prune", "--dry-run"], 0), (["prune", "--batch", "0"], 2), ([], 2), (["nonsense"], 2)],
)
def test_the_exit_code_tells_a_script_how_it_went(
    transactional_db: None, python_env: dict[str, str], words: list[str], code: int
) -> None:
    env = {**python_env, "TEST_DB_NAME": str(connection.settings_dict["NAME"])}
    done = subprocess.run(
        [sys.executable, "-m", "django", "boundedpool", *words], env=env, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_the_exit_code_is_1_without_the_table(python_env: dict[str, str], tmp_path: Any) -> None:
    env = {**python_env, "TEST_DB": "sqlite", "TEST_DB_NAME": str(tmp_path / "empty.sqlite3")}
    done = subprocess.run(
        [sys.executable, "-m", "django", "boundedpool", "prune"], env=env, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, "Traceback" in done.stderr) == (1, False)
    assert "boundedpool_job" in done.stderr
