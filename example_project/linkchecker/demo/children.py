"""Child processes that never outlive the demo, and say why when they fail."""

import ctypes
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

from django.core.management.base import CommandError

_PR_SET_PDEATHSIG = 1


def free_port(wanted: int, tries: int = 50) -> int:
    """The first port from `wanted` on that nobody listens on at 127.0.0.1."""
    for port in range(wanted, wanted + tries):
        with socket.socket() as probe:
            # As servers do it: a port that only has old connections in TIME_WAIT counts as free.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise CommandError(f"All ports from {wanted} to {wanted + tries - 1} are taken. Choose others with --port.")


class Child:
    """One subprocess with its output in a log file."""

    def __init__(self, name: str, command: list[str], *, log: Path, cwd: Path, env: dict[str, str]) -> None:
        self.name = name
        self.log = log
        with log.open("wb") as output:
            self.process = subprocess.Popen(  # noqa: S603 - our own command
                command,
                cwd=cwd,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                # Ctrl-C goes to the whole foreground group; the children shall only get the demo's own SIGTERM.
                start_new_session=True,
                preexec_fn=_end_with_parent if sys.platform == "linux" else None,
            )

    def wait_until_it_answers(self, url: str, seconds: float = 20) -> None:
        """Return when `url` answers with anything, or raise CommandError with the end of the child's log."""
        stop_at = time.monotonic() + seconds
        while time.monotonic() < stop_at:
            if self.process.poll() is not None:
                raise CommandError(self.failure(f"ended with code {self.process.returncode}"))
            try:
                with urllib.request.urlopen(url, timeout=2):  # noqa: S310 - our own http address
                    return
            except urllib.error.HTTPError:
                return
            except OSError:
                time.sleep(0.1)
        raise CommandError(self.failure(f"did not answer at {url} within {seconds:g} s"))

    def failure(self, what: str) -> str:
        return f"{self.name} {what}. The end of {self.log}:\n\n{self.tail()}"

    def tail(self, lines: int = 25) -> str:
        text = self.log.read_text(errors="replace").splitlines()
        return "\n".join(f"    {line}" for line in text[-lines:]) or "    (empty)"

    def stop(self, seconds: float) -> int:
        """Send SIGTERM, wait up to `seconds` for a clean end, then kill. Returns the exit code."""
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(seconds)
            except subprocess.TimeoutExpired:
                # The whole session: gunicorn's worker is a child of the child.
                os.killpg(self.process.pid, signal.SIGKILL)
                self.process.wait()
        return self.process.returncode


def _end_with_parent() -> None:
    # Linux sends this signal to the child when the demo dies without having stopped it (kill -9).
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
