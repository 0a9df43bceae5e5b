"""Starts real servers and looks at what they did: over HTTP, in the ledger, in the table, in /proc."""

from __future__ import annotations

import http.client
import json
import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar
from uuid import UUID

PROJECT = Path(__file__).parent / "project"
ROOT = Path(__file__).resolve().parents[2]
#: How long anything may take on a busy machine that on an idle one takes next to nothing. Seconds.
PATIENCE = 30.0
#: What a stop may take beyond DRAIN_TIMEOUT: the server's own polling, and the interpreter's end. Seconds.
SLACK = 3.0

GUNICORN = [sys.executable, "-m", "gunicorn", "bench.wsgi", "-b", "127.0.0.1:0", "-w", "1"]
UVICORN = [sys.executable, "-m", "uvicorn", "--port", "0"]
GTHREAD = [*GUNICORN, "-k", "gthread", "--threads", "8"]
SYNC = [*GUNICORN, "-k", "sync"]


@dataclass(frozen=True, kw_only=True)
class Kind:
    """One way to serve the project.

    Attributes:
        command: starts it.
        concurrent: whether one process serves several requests at once.
        closes_early: whether admission closes at the signal, not only when the server has stopped.
        term, interrupt: exit status after SIGTERM and after SIGINT.
    """

    name: str
    command: list[str]
    concurrent: bool = True
    closes_early: bool = True
    term: int = 0
    interrupt: int = 0


KINDS = {
    kind.name: kind
    for kind in (
        Kind(name="gthread", command=GTHREAD),
        Kind(name="sync", command=SYNC, concurrent=False),
        # Its own handler covers ours while it serves; afterwards it raises the signal again, and SystemExit follows.
        Kind(name="uvicorn", command=[*UVICORN, "bench.asgi_plain:application"], closes_early=False, term=143),
        Kind(name="lifespan", command=[*UVICORN, "bench.asgi:application"]),
    )
}

Value = TypeVar("Value")


def until(look: Callable[[], Value], what: str, within: float = PATIENCE) -> Value:
    """Look again and again until the answer is true, and return it; fail after `within` seconds."""
    deadline = time.monotonic() + within
    while not (value := look()):
        assert time.monotonic() < deadline, f"not within {within:g} s: {what}"
        time.sleep(0.02)
    return value


@dataclass(frozen=True)
class Answer:
    """An HTTP response with a JSON body, if it has one."""

    status: int
    body: Any
    pid: int


@dataclass(frozen=True)
class Line:
    """One line of the ledger."""

    event: str
    key: str
    pid: int
    moment: float


@dataclass(frozen=True)
class Row:
    """What the table says of one job."""

    id: str
    state: str
    reason: str
    attempt: int
    live: bool

    @property
    def outcome(self) -> str:
        return f"{self.state}/{self.reason}" if self.reason else self.state


@dataclass
class Bench:
    """A database, a ledger and the processes that use them."""

    folder: Path
    variables: dict[str, str] = field(default_factory=dict)
    programs: list[Program] = field(default_factory=list)

    @property
    def database(self) -> Path:
        return self.folder / "bench.sqlite3"

    @property
    def ledger(self) -> Path:
        return self.folder / "ledger"

    def environment(self, **variables: object) -> dict[str, str]:
        """The environment of a program: `drain_timeout=3` becomes BENCH_DRAIN_TIMEOUT."""
        path = os.pathsep.join([str(PROJECT), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        given = {f"BENCH_{name.upper()}": str(value) for name, value in variables.items()}
        return {
            **os.environ,
            "PYTHONPATH": path,
            "PYTHONUNBUFFERED": "1",
            "DJANGO_SETTINGS_MODULE": "bench.settings",
            "BENCH_DB": str(self.database),
            "BENCH_LEDGER": str(self.ledger),
            **self.variables,
            **given,
        }

    def start(self, command: list[str], **variables: object) -> Program:
        """Start a program that serves nothing."""
        program = Program(command, self.environment(**variables), self.folder / f"log{len(self.programs)}")
        self.programs.append(program)
        return program

    def serve(self, command: list[str], *, look: bool = True, **variables: object) -> Server:
        """Start a server; unless `look` is False, return once it has answered a request."""
        server = Server(command, self.environment(**variables), self.folder / f"log{len(self.programs)}")
        self.programs.append(server)
        until(lambda: server.found_port() or server.ended, f"{server} listens")
        assert not server.ended, server.log
        if look:
            until(server.answers, f"{server} answers")
        return server

    def manage(self, *arguments: str, **variables: object) -> Program:
        """Start a management command."""
        return self.start([sys.executable, "manage.py", *arguments], **variables)

    def lines(self, event: str = "") -> list[Line]:
        """What really happened so far."""
        if not self.ledger.exists():
            return []
        lines = [line.split() for line in self.ledger.read_text().splitlines()]
        found = [Line(event, key, int(pid), float(moment)) for event, key, pid, moment in lines]
        return [line for line in found if not event or line.event == event]

    def keys(self, event: str) -> list[str]:
        """The jobs (or other keys) that `event` happened to, repeats included."""
        return [line.key for line in self.lines(event)]

    def jobs(self) -> dict[str, Row]:
        """The rows of the jobs, by id."""
        rows = self._query("SELECT id, state, reason, attempt, live FROM boundedpool_job")
        return {str(UUID(row[0])): Row(str(UUID(row[0])), *row[1:4], bool(row[4])) for row in rows}

    def outcomes(self) -> Counter[str]:
        """How many jobs there are, by state and reason."""
        return Counter(row.outcome for row in self.jobs().values())

    def processes(self) -> list[dict[str, Any]]:
        """The rows of the processes, oldest first."""
        names = ("pid", "stopped_at", "lost_at", "drain_report")
        rows = self._query(f"SELECT {', '.join(names)} FROM boundedpool_process ORDER BY started_at")
        found = [dict(zip(names, row, strict=True)) for row in rows]
        for row in found:
            row["drain_report"] = json.loads(row["drain_report"]) if row["drain_report"] else None
        return found

    def stop_all(self) -> None:
        """Kill what a test left running."""
        for program in self.programs:
            program.kill()

    def _query(self, sql: str) -> list[tuple[Any, ...]]:
        with closing(sqlite3.connect(self.database, timeout=20)) as connection:
            return connection.execute(sql).fetchall()


class Program:
    """A process in a process group of its own, with its output in a file."""

    def __init__(self, command: list[str], environment: dict[str, str], log: Path) -> None:
        self._log = log
        self._command = command
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                command,
                cwd=PROJECT,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.signalled = 0.0

    def __str__(self) -> str:
        return f"{' '.join(self._command[1:4])}, which has said:\n{self.log}"

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def ended(self) -> bool:
        return self._process.poll() is not None

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def send(self, signum: signal.Signals) -> None:
        """Send a signal that is not to end it."""
        self._process.send_signal(signum)

    def signal(self, signum: signal.Signals) -> None:
        """Send the main process a signal that is to end it; the time until its end counts from the first one."""
        self.signalled = self.signalled or time.monotonic()
        self._process.send_signal(signum)

    def signal_group(self, signum: signal.Signals) -> None:
        """Send a signal to every process of it, as a terminal or a service manager does."""
        self.signalled = self.signalled or time.monotonic()
        os.killpg(self.pid, signum)

    def wait(self, within: float = PATIENCE) -> int:
        """Wait for the end and return the exit status; `within` counts from the first signal, if there was one."""
        left = (self.signalled or time.monotonic()) + within - time.monotonic()
        try:
            code = self._process.wait(max(0.0, left))
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still running after {within:g} s: {self}") from None
        self.took = time.monotonic() - (self.signalled or time.monotonic())
        return code

    def kill(self) -> None:
        """Kill every process of the group."""
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self._process.wait(10)


class Server(Program):
    """A program that serves HTTP on a port of its own choice, which its log tells."""

    port = 0

    def found_port(self) -> bool:
        # The last one named: an autoreloading server tells it anew at each start.
        named = re.findall(r"http://127\.0\.0\.1:(\d+)", self.log)
        self.port = int(named[-1]) if named else 0
        return bool(self.port)

    def ask(self, path: str, method: str = "GET", *, timeout: float = PATIENCE, **headers: str) -> Answer:
        """Make one request on a connection of its own."""
        with closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)) as connection:
            names = {name.replace("_", "-"): value for name, value in headers.items()}
            connection.request(method, path, headers={"Connection": "close", **names})
            response = connection.getresponse()
            text = response.read()
            is_json = "json" in response.headers.get("Content-Type", "")
            return Answer(response.status, json.loads(text) if is_json else text, int(response.headers["X-Pid"] or 0))

    def answers(self) -> bool:
        """Whether it answers already; uvicorn names its port before its workers listen."""
        try:
            return self.ask("/alive/").status == 200
        except ConnectionRefusedError:
            return False

    def submit(self, n: int, seconds: float, job: str = "work") -> list[str]:
        """Submit n jobs in one request and return their ids."""
        answer = self.ask(f"/batch/?n={n}&seconds={seconds:g}&job={job}")
        assert answer.status == 202, answer
        ids: list[str] = answer.body["ids"]
        return ids

    def serving_pid(self) -> int:
        """The process that answers requests."""
        return self.ask("/state/").pid


class Request:
    """A request in a thread."""

    def __init__(self, server: Server, path: str) -> None:
        self._answer: Answer | None = None
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, args=(server, path))
        self._thread.start()

    def _run(self, server: Server, path: str) -> None:
        try:
            self._answer = server.ask(path)
        except Exception as error:
            self._error = error

    def answer(self) -> Answer:
        """Wait for the answer, and raise what came instead of one."""
        self._thread.join(PATIENCE + 5)
        if self._error is not None:
            raise self._error
        assert self._answer is not None
        return self._answer


class Visitors:
    """A thread that submits short jobs, one request after another, until the server takes no more connections."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._enough = threading.Event()
        #: What each answer said: "accepted", the code of a refusal, or "no answer".
        self.heard: list[str] = []
        self.ids: list[str] = []
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        deadline = time.monotonic() + PATIENCE
        while not self._enough.wait(0.02) and time.monotonic() < deadline:
            try:
                answer = self._server.ask("/submit/?seconds=0.01", timeout=3)
            except (OSError, http.client.HTTPException):
                self.heard.append("no answer")
            else:
                self.heard.append("accepted" if answer.status == 202 else answer.body["code"])
                if answer.status == 202:
                    self.ids.append(answer.body["id"])

    def leave(self) -> list[str]:
        """Stop, and return what was heard."""
        self._enough.set()
        self._thread.join(PATIENCE)
        return self.heard


def children(pid: int) -> list[int]:
    """The processes that `pid` has started."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == pid:
            found.append(int(stat.parent.name))
    return found


def thread_count(pid: int) -> int:
    """How many threads a process has."""
    return len(list(Path(f"/proc/{pid}/task").iterdir()))


def make_template(folder: Path) -> Path:
    """Migrate an empty database, to be copied for each test."""
    bench = Bench(folder)
    program = bench.manage("migrate", "--verbosity", "0")
    assert program.wait(60) == 0, program
    assert not list(folder.glob("bench.sqlite3-*")), "the template is not one whole file"
    return bench.database


def new_bench(folder: Path, template: Path) -> Iterator[Bench]:
    """A bench with a migrated database; whatever it started is killed at the end."""
    bench = Bench(folder)
    shutil.copy(template, bench.database)
    try:
        yield bench
    finally:
        bench.stop_all()


def check_truth(bench: Bench, accepted: list[str]) -> None:
    """Every accepted job is there, is over, and is in the state that the ledger proves."""
    jobs = bench.jobs()
    assert set(accepted) <= set(jobs)
    started, ended = bench.keys("start"), bench.keys("end")
    assert len(started) == len(set(started)), "a job ran twice"
    assert not [row for row in jobs.values() if row.live or row.state in ("queued", "running")]
    assert {row.id for row in jobs.values() if row.state == "succeeded"} == set(ended)
    assert {row.id for row in jobs.values() if row.attempt} == set(started)
