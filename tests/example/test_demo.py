"""`manage.py demo`, as the Makefile calls it, and the proof it gives at its end."""

import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path
from uuid import uuid4

import pytest
from django.contrib.auth.base_user import AbstractBaseUser
from django.core.management.base import CommandError
from linkchecker.demo.children import Child, free_port
from linkchecker.demo.report import Watch, finished_total, progress_line, verify
from linkchecker.management.commands.demo import Command
from linkchecker.models import Batch, Link

from django_boundedpool.models import Job

PROJECT = Path(__file__).resolve().parents[2] / "example_project"
METRICS = """# TYPE django_boundedpool_finished_total counter
django_boundedpool_finished_total{job_name="a",pool="default",reason="",state="succeeded"} 2.0
django_boundedpool_finished_total{job_name="a",pool="default",reason="error",state="failed"} 1.0
django_boundedpool_finished_created{job_name="a",pool="default"} 1.7e+09
"""


@pytest.fixture
def batch(user: AbstractBaseUser) -> Batch:
    """Three links whose jobs are over."""
    batch = Batch.objects.create(owner=user)
    process = uuid4()
    for state in ("succeeded", "failed", "abandoned"):
        job = Job.objects.create(name="check", pool="default", state=state, batch=batch.label, process=process)
        Link.objects.create(batch=batch, url="https://a.example/", feeding=Link.Feeding.ACCEPTED, job_id=job.pk)
    return batch


def test_finished_jobs_are_read_from_the_metrics() -> None:
    assert finished_total(METRICS) == 3
    assert finished_total("") == 0


def test_proof_finds_nothing_when_all_is_well(batch: Batch) -> None:
    assert verify(batch, Watch(bound=104, peak=104), METRICS) == []


def test_proof_finds_each_kind_of_fault(batch: Batch) -> None:
    first, second, third = batch.links.all()
    assert "1 above its bound" in verify(batch, Watch(bound=104, peak=105), METRICS)[0]
    assert "0 finished jobs instead of 3" in verify(batch, Watch(), "")[0]
    Job.objects.filter(pk=first.job_id).update(state="running")
    assert "no terminal state" in verify(batch, Watch(), METRICS)[0]
    Job.objects.filter(pk=first.job_id).delete()
    assert "have no row" in verify(batch, Watch(), METRICS)[0]
    Link.objects.filter(pk=second.pk).update(job_id=third.job_id)
    assert any("share one job" in fault for fault in verify(batch, Watch(), METRICS))
    Link.objects.filter(pk=third.pk).update(job_id=None, feeding=Link.Feeding.WAITING)
    assert "never got a job" in verify(batch, Watch(), METRICS)[0]


def test_progress_line_says_waiting_of_the_queue_alone() -> None:
    answer = {
        "bar": [{"status": "ok", "count": 4}, {"status": "queued", "count": 100}, {"status": "waiting", "count": 132}],
        "pool": {"queued": 100, "queue_size": 100, "running": 4, "workers": 4},
        "done": 4,
        "total": 240,
        "refusal": "queue_full",
    }
    assert progress_line(answer, 0.5) == (
        "  0.5 s    4/240 done  pool 100/100 waiting 4/4 running  ok 4 queued 100 unfed 132  POOL FULL"
    )


def start_demo(var: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-u", "manage.py", "demo", "--port", "8400", *arguments],
        cwd=PROJECT,
        env={**os.environ, "DEMO_VAR": str(var), "DJANGO_SETTINGS_MODULE": "linkdemo.settings"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def children_of(pid: int) -> list[int]:
    found = subprocess.run(["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True, check=False)
    return [int(line) for line in found.stdout.split()]


@pytest.mark.server
@pytest.mark.parametrize("server", ["gunicorn", "uvicorn"])
def test_demo_checks_its_batch_and_ends_by_itself(tmp_path: Path, server: str) -> None:
    demo = start_demo(tmp_path, "--once", "--server", server)
    output, _ = demo.communicate(timeout=100)
    assert demo.returncode == 0, output
    assert "POOL FULL" in output
    assert "Pool: at most 104 of 104 jobs at once" in output
    ended = re.search(r"Every accepted job is in exactly one terminal state: (\d+) succeeded, (\d+) failed\.", output)
    assert ended, output
    assert int(ended[1]) + int(ended[2]) == 240
    done = [int(number) for number in re.findall(r"(\d+)/240 done", output)]
    assert done == sorted(done)
    assert done[-1] == 240
    assert "FAULT" not in output
    assert "links wait" not in output
    assert re.search(r"pool 100/100 waiting 4/4 running .* unfed \d+  POOL FULL$", output, re.MULTILINE), output
    first, *later = re.findall(r"http://127\.0\.0\.1:84\d\d/\S*", output)
    assert f"{first}  (log in as demo / demo)" in output
    assert not later  # nothing serves any more


@pytest.mark.server
def test_demo_that_is_told_to_stop_leaves_no_process_behind(tmp_path: Path) -> None:
    demo = start_demo(tmp_path, "--links", "20")
    assert demo.stdout is not None
    output = []
    for line in demo.stdout:
        output.append(line)
        if "Serving until" in line:
            break
    else:
        pytest.fail("".join(output))
    children = children_of(demo.pid)
    workers = [worker for child in children for worker in children_of(child)]
    assert len(children) == 2
    assert workers
    demo.send_signal(signal.SIGTERM)
    assert "Stopping: accepted jobs may finish, up to 20 s." in demo.communicate(timeout=60)[0]
    assert demo.returncode == 0
    assert not [pid for pid in [*children, *workers] if Path(f"/proc/{pid}").exists()]


def test_child_that_ends_is_reported_with_the_end_of_its_log(tmp_path: Path) -> None:
    child = Child(
        "helper",
        [sys.executable, "-c", "raise SystemExit('no database here')"],
        log=tmp_path / "helper.log",
        cwd=tmp_path,
        env=dict(os.environ),
    )
    with pytest.raises(CommandError, match=r"(?s)helper ended with code 1.*no database here"):
        child.wait_until_it_answers("http://127.0.0.1:9/")
    assert child.stop(1) == 1


def test_missing_requirement_is_named_with_its_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(CommandError, match=r"gunicorn, whitenoise.*pip install -e '\.\[demo\]'"):
        Command().check_requirements("gunicorn")


def test_port_that_is_taken_is_passed_over() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert free_port(port) > port
