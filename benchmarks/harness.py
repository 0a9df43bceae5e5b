"""How things are measured here: interleaved rounds, per-round ratios, processes of their own, and one table."""

from __future__ import annotations

import gc
import multiprocessing
import os
import statistics
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from typing import Any, Literal

PAGE = os.sysconf("SC_PAGE_SIZE")
MIB = 1024 * 1024

Of = Literal["ratio", "ours"]


@dataclass(frozen=True, kw_only=True)
class Target:
    """A bound on the median of the ratio, or of our own figure.

    Attributes:
        least, most: bounds, as far as there are any.
        worst: the bound that no single round may pass, on the same side.
        stretch: what we would like; missing it is no fault.
        of: what is bounded.
        number: the row of the table of targets that it comes from.
    """

    least: float | None = None
    most: float | None = None
    worst: float | None = None
    stretch: float | None = None
    of: Of = "ratio"
    number: int = 0

    def holds(self, values: Sequence[float]) -> bool:
        """Whether `values` of all rounds keep to it."""
        median = statistics.median(values)
        if self.least is not None and median < self.least:
            return False
        if self.most is not None and median > self.most:
            return False
        if self.worst is None:
            return True
        return min(values) >= self.worst if self.least is not None else max(values) <= self.worst

    def __str__(self) -> str:
        sign, bound = (">=", self.least) if self.least is not None else ("<=", self.most)
        worst = f", every round {sign} {self.worst:g}" if self.worst is not None else ""
        stretch = f" (stretch {self.stretch:g})" if self.stretch is not None else ""
        number = f"#{self.number}: " if self.number else ""
        return f"{number}{'ratio ' if self.of == 'ratio' else ''}{sign} {bound:g}{worst}{stretch}"


@dataclass(frozen=True, kw_only=True)
class Row:
    """One line of the table: a figure per round, ours and, where there is one, the peer's of the same round."""

    what: str
    unit: str
    ours: Sequence[float]
    peer: Sequence[float] | None = None
    peer_name: str = ""
    target: Target | None = None

    @property
    def ratios(self) -> list[float]:
        """Ours to the peer's, round by round."""
        return [ours / peer if peer else float("nan") for ours, peer in zip(self.ours, self.peer or (), strict=False)]

    @property
    def held(self) -> bool | None:
        """Whether the target was met, None without one."""
        if self.target is None:
            return None
        return self.target.holds(self.ratios if self.target.of == "ratio" else self.ours)

    def cells(self) -> list[str]:
        """Return what stands in the table."""
        ratios = self.ratios
        about_ratio = bool(ratios) and (self.target is None or self.target.of == "ratio")
        spread, times = (ratios, "x") if about_ratio else (list(self.ours), "")
        return [
            self.what,
            f"{short(statistics.median(self.ours))} {self.unit}",
            f"{self.peer_name} {short(statistics.median(self.peer))} {self.unit}" if self.peer else "-",
            f"x{statistics.median(ratios):.2f}" if ratios else "-",
            f"{times}{short(min(spread))} .. {times}{short(max(spread))}" if len(spread) > 1 else "one round",
            "-" if self.target is None else str(self.target),
            {True: "held", False: "**MISSED**", None: "-"}[self.held],
        ]

    def as_json(self) -> dict[str, Any]:
        """Return everything, the figures of each round included."""
        return {**asdict(self), "ratios": self.ratios, "held": self.held}


HEADER = ("what", "ours", "peer", "ratio", "spread", "target", "held")


def table(rows: Sequence[Row]) -> str:
    """Return `rows` as a Markdown table."""
    lines = [HEADER, tuple("---" for _ in HEADER), *(row.cells() for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def short(value: float) -> str:
    """Return a number with three significant digits."""
    if value != value:
        return "?"
    if abs(value) >= 10_000:
        return f"{value / 1000:.0f}k" if abs(value) < 1_000_000 else f"{value / 1e6:.2f}M"
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:.0f}"


def interleaved(variants: Mapping[str, Callable[[], Any]], rounds: int, *, warm: bool = True) -> dict[str, list[Any]]:
    """Run each variant once per round, in an order that moves on by one each round; return what each returned.

    The other variants of a round are what a figure is compared with: whatever else the machine does falls on all of
    them. Garbage is collected before each run, outside of what the variant measures itself.
    """
    names = list(variants)
    results: dict[str, list[Any]] = {name: [] for name in names}
    if warm:
        for name in names:
            variants[name]()
    for number in range(rounds):
        shift = number % len(names)
        for name in names[shift:] + names[:shift]:
            gc.collect()
            results[name].append(variants[name]())
    return results


def rss() -> int:
    """Return the resident memory of this process in bytes."""
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * PAGE


def percentile(values: Sequence[float], share: float) -> float:
    """Return the value below which `share` of `values` lie."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def apart(function: Callable[..., Any], *args: Any) -> Any:
    """Return `function(*args)`, called in a fresh process: memory, threads and garbage of others cannot leak into it.

    Raises:
        RuntimeError: the call raised; the message is its traceback.
    """
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_answer, args=(theirs, function, args))
    process.start()
    theirs.close()
    try:
        ok, value = ours.recv()
    except EOFError:
        ok, value = False, f"the process ended with {process.exitcode} and said nothing"
    process.join()
    if not ok:
        raise RuntimeError(f"{function.__module__}.{function.__qualname__}: {value}")
    return value


def _answer(pipe: Connection, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
    try:
        answer = True, function(*args)
    except BaseException:  # noqa: BLE001 - it is reported by whoever asked
        answer = False, traceback.format_exc()
    pipe.send(answer)
    pipe.close()
    os._exit(0)  # what a benchmark leaves behind (threads, queued jobs) is not to be waited for
