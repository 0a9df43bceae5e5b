"""Writes the table of states.md from the one in the code: `.venv/bin/python docs/states_table.py`."""

from collections.abc import Iterable
from pathlib import Path

from django_boundedpool.engine.states import MOVES, REASONS, JobState, Reason

PAGE = Path(__file__).with_name("states.md")
BEGIN = "<!-- states:begin (written by states_table.py) -->\n"
END = "<!-- states:end -->\n"


def words(values: Iterable[str]) -> str:
    return ", ".join(f"`{value}`" for value in values if value) or "none"


def table() -> str:
    lines = ["| state | final | meaning | reasons | may become |", "|---|---|---|---|---|"]
    for state in JobState:
        final = "yes" if state.terminal else "no"
        reasons = words(reason for reason in Reason if reason in REASONS[state])
        moves = words(other for other in JobState if other in MOVES[state])
        lines.append(f"| `{state}` | {final} | {state.description} | {reasons} | {moves} |")
    return "\n".join(lines) + "\n"


def with_table(text: str) -> str:
    """The page with a fresh table between its two marks."""
    head, rest = text.split(BEGIN)
    return head + BEGIN + table() + END + rest.split(END)[1]


if __name__ == "__main__":
    PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
