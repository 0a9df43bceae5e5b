"""Run the whole example once, watched from outside through its web pages, then keep serving it."""

import argparse
import importlib.util
import os
import signal
import sys
import time
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from django.conf import settings
from django.contrib.auth import get_user_model
from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandError

from linkchecker.demo.browser import Visitor
from linkchecker.demo.children import Child, free_port
from linkchecker.demo.report import Watch, job_states, progress_line, result_table, verify
from linkchecker.models import Batch
from linkchecker.progress import live_jobs

NAME = "demo"
PASSWORD = "demo"  # noqa: S105 - printed below, and the server listens on loopback only
LONGEST_RUN = 120.0
FETCH_SECONDS = "2"
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Command(BaseCommand):
    help = "Checks a batch of links through the web page, shows what the pool does meanwhile, and keeps serving."

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "--once", action="store_true", help="end after the batch: 0 all well, 1 a job was lost, 130 interrupted"
        )
        parser.add_argument("--links", type=int, default=240, help="links in the batch (default 240)")
        parser.add_argument("--port", type=int, default=8000, help="port of the web server (default 8000)")
        parser.add_argument("--server", choices=["gunicorn", "uvicorn"], default="gunicorn")

    def handle(self, *, once: bool, links: int, port: int, server: str, **_: Any) -> None:
        self.check_requirements(server)
        # All of them end the demo the way Ctrl-C does, so that the children below are stopped in every case.
        for number in STOP_SIGNALS:
            signal.signal(number, _interrupt)
        self.children: list[Child] = []
        faults: list[str] | None = None
        try:
            faults = self.run(links=links, port=port, server=server)
            if not once:
                self.stdout.write(f"\nServing until Ctrl-C.\nPage   {self.page}\nAdmin  {self.base_url}/admin/")
                self.serve()
        except KeyboardInterrupt:
            limit = settings.BOUNDED_POOLS["default"]["DRAIN_TIMEOUT"]
            self.stdout.write(f"\nStopping: accepted jobs may finish, up to {limit} s.")
        finally:
            self.stop_children()
        if faults is None:
            sys.exit(130)
        if faults:
            sys.exit(1)

    def check_requirements(self, server: str) -> None:
        missing = [name for name in (server, "whitenoise") if importlib.util.find_spec(name) is None]
        if missing:
            raise CommandError(
                f"Not installed for {sys.executable}: {', '.join(missing)}. "
                f"Install the demo's requirements with: {sys.executable} -m pip install -e '.[demo]'"
            )

    def run(self, *, links: int, port: int, server: str) -> list[str]:
        call_command("migrate", verbosity=0)
        users = get_user_model().objects
        if not users.filter(username=NAME).exists():
            users.create_superuser(NAME, password=PASSWORD)
        downstream = self.start_downstream()
        self.base_url = self.start_server(server, port, downstream)

        visitor = Visitor(self.base_url)
        visitor.log_in(NAME, PASSWORD)
        text = Visitor(downstream).get(f"/links.txt?n={max(links - len(BAD_LINKS), 1)}") + "\n".join(BAD_LINKS)
        visitor.submit("/links/", text=text)
        self.page = visitor.url
        batch = Batch.objects.get(pk=self.page.rstrip("/").rpartition("/")[2])
        self.stdout.write(f"\nBatch of {batch.links.count()} links: {self.page}  (log in as {NAME} / {PASSWORD})\n")
        watch = self.watch(visitor, f"{self.page}progress/", batch)

        self.stdout.write("\n" + result_table(batch) + "\n")
        faults = verify(batch, watch, visitor.get("/metrics"))
        self.stdout.write(
            f"\nPool: at most {watch.peak} of {watch.bound} jobs at once "
            f"({watch.peak_running} running, {watch.peak_queued} waiting); "
            f"it refused the next link {watch.refusals} times, and each was fed later."
        )
        for fault in faults:
            self.stdout.write(self.style.ERROR(f"FAULT: {fault}."))
        if not faults:
            self.stdout.write(
                self.style.SUCCESS(f"Every accepted job is in exactly one terminal state: {job_states(batch)}.")
            )
        return faults

    def start_downstream(self) -> str:
        port = free_port(9100)
        child = self.start("downstream", ["-m", "downstream", "--port", str(port)], {})
        url = f"http://127.0.0.1:{port}"
        child.wait_until_it_answers(f"{url}/control")
        return url

    def start_server(self, server: str, wanted: int, downstream: str) -> str:
        port = free_port(wanted)
        if port != wanted:
            self.stdout.write(f"Port {wanted} is taken; using {port}.")
        # The server must outlast the pool's drain, or it kills jobs that the pool would still have finished.
        patience = settings.BOUNDED_POOLS["default"]["DRAIN_TIMEOUT"] + 10
        self.patience = patience + 5
        arguments = {
            "gunicorn": [
                *("-m", "gunicorn", "linkdemo.wsgi", "--bind", f"127.0.0.1:{port}"),
                *("--worker-class", "gthread", "--workers", "1", "--threads", "8"),
                *("--graceful-timeout", str(patience)),
            ],
            "uvicorn": [
                *("-m", "uvicorn", "linkdemo.asgi:application", "--host", "127.0.0.1", "--port", str(port)),
                *("--log-level", "warning", "--lifespan", "on", "--timeout-graceful-shutdown", "5"),
            ],
        }[server]
        child = self.start(
            server,
            arguments,
            {"DEMO_ALLOWED_TARGET": downstream.removeprefix("http://"), "DEMO_FETCH_SECONDS": FETCH_SECONDS},
        )
        url = f"http://127.0.0.1:{port}"
        child.wait_until_it_answers(f"{url}/login/")
        return url

    def start(self, name: str, arguments: list[str], env: dict[str, str]) -> Child:
        child = Child(
            name,
            [sys.executable, *arguments],
            log=Path(settings.VAR_DIR) / f"{name}.log",
            cwd=settings.BASE_DIR,
            env={**os.environ, "DJANGO_SETTINGS_MODULE": "linkdemo.settings", **env},
        )
        self.children.append(child)
        return child

    def watch(self, visitor: Visitor, path: str, batch: Batch) -> Watch:
        """Poll as the page's script does, which also feeds the pool, and show a line for each look."""
        watch = Watch()
        started = time.monotonic()
        while True:
            answer = visitor.get_json(path)
            seconds = time.monotonic() - started
            watch.look(answer)
            self.show(progress_line(answer, seconds), last=answer["finished"])
            if answer["finished"] and not live_jobs(batch).exists():
                return watch
            if seconds > LONGEST_RUN:
                raise CommandError(self.children[-1].failure(f"did not finish the batch in {LONGEST_RUN:g} s"))
            self.check_children()
            time.sleep(0.5)

    def show(self, line: str, *, last: bool) -> None:
        # On a terminal the line is rewritten in place; in a log file each look gets a line of its own.
        if self.stdout.isatty():
            self.stdout.write("\r\033[K" + line[: os.get_terminal_size().columns - 1], ending="\n" if last else "")
            self.stdout.flush()
        else:
            self.stdout.write(line)

    def serve(self) -> NoReturn:
        while True:
            self.check_children()
            time.sleep(1)

    def check_children(self) -> None:
        for child in self.children:
            if child.process.poll() is not None:
                raise CommandError(child.failure(f"ended with code {child.process.returncode}"))

    def stop_children(self) -> None:
        # From here on another Ctrl-C must not leave a child behind.
        for number in STOP_SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        for child in reversed(self.children):
            child.stop(self.patience if child.name != "downstream" else 5)


def _interrupt(_number: int, _frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt


# Links that are refused before anything is sent, or never get an answer.
BAD_LINKS = (
    "http://10.0.0.1/",
    "http://[::1]/",
    "http://2130706433/",
    "http://user:password@example.com/",
    "ftp://example.com/file",
    "http://exa mple.com/",
    "not a link",
    "http://[::ffff:127.0.0.1]/",
)
