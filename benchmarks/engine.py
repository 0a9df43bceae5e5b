"""The figures of docs/performance.md: `python benchmarks/engine.py [section ...] [--rounds N] [--json FILE]`.

What each figure includes, leaves out, and where it is not fair is said at the top of the module of its section; what is
switched on at `subjects.Engine` and in project.py, and how the peers are driven in peers.py. No target is about the
time of a round, only about ratios within rounds or our own figure, of which the medians count.

"Ours" and "peer" are medians of all rounds, "ratio" is the median of the ratios of each round, "spread" the smallest
and the largest round of whatever the target is about. #n is the row of the project's table of targets.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import platform
import sys
import time
from contextlib import suppress
from importlib import metadata
from typing import Any

from harness import Row, apart, table

SECTIONS = {
    "throughput": "Throughput of the engine, W=8",
    "decorated": 'Throughput through @job, PERSIST="memory"',
    "latency": "From submit to start",
    "cancel": "Cancellation",
    "memory": "Memory and refusals",
    "coroutines": "Async jobs",
    "timers": "Timers",
    "gil": "A job that computes",
}


def measure(section: str, rounds: int) -> list[Row]:
    """Measure one section in this process."""
    rows: list[Row] = importlib.import_module(section).run(rounds)
    return rows


def machine() -> str:
    """Return what the figures are true for."""
    model = "unknown processor"
    with suppress(OSError, StopIteration), open("/proc/cpuinfo") as lines:
        model = next(line for line in lines if line.startswith("model name")).partition(":")[2].strip()
    python = f"{platform.python_implementation()} {platform.python_version()}, Django {metadata.version('Django')}"
    return f"{os.cpu_count()} cores of {model}, Linux {platform.release()}, {python}"


def main() -> int:
    """Measure what was asked for; 1 if a target was missed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("sections", nargs="*", metavar="section", help=", ".join(SECTIONS))
    parser.add_argument("--rounds", type=int, default=7, help="runs of each variant, interleaved (default 7)")
    parser.add_argument("--json", metavar="FILE", help="where every figure of every round is written")
    options = parser.parse_args()
    unknown = sorted(set(options.sections) - set(SECTIONS))
    if unknown or options.rounds < 1:
        parser.error(f"no section {', '.join(unknown)}" if unknown else "--rounds must be at least 1")
    print(f"{machine()}; load {os.getloadavg()[0]:.1f}, {options.rounds} rounds\n", flush=True)
    everything: dict[str, Any] = {}
    missed: list[str] = []
    for section in options.sections or SECTIONS:
        began = time.monotonic()
        rows = apart(measure, section, options.rounds)
        print(f"### {SECTIONS[section]}\n\n{table(rows)}\n\n{time.monotonic() - began:.0f} s\n", flush=True)
        everything[section] = [row.as_json() for row in rows]
        missed += [f"{section}: {row.what} ({row.peer_name or 'alone'})" for row in rows if row.held is False]
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(everything, file, indent=1)
    print("Missed:\n- " + "\n- ".join(missed) if missed else "Every target was held.")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
