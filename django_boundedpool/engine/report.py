"""What a drain came to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID


@dataclass(frozen=True, kw_only=True)
class DrainReport:
    """What a drain came to.

    Attributes:
        reason: what began it, such as "SIGTERM" or "exit".
        seconds: how long it took.
        deadline: seconds that it had, or None.
        outcomes: ids of the jobs that ended during the drain, by outcome, such as "abandoned/drain_deadline".
        flushed: whether everything was written to the store.
        hurried: whether it was told to stop waiting.
    """

    reason: str
    seconds: float
    deadline: float | None
    outcomes: Mapping[str, Sequence[UUID]]
    flushed: bool
    hurried: bool

    def counts(self) -> dict[str, int]:
        """Return how many jobs ended, by outcome."""
        return {outcome: len(ids) for outcome, ids in sorted(self.outcomes.items())}

    def as_json(self) -> dict[str, Any]:
        """Return the report as JSON values."""
        return {
            "reason": self.reason,
            "seconds": round(self.seconds, 3),
            "deadline": self.deadline,
            "counts": self.counts(),
            "outcomes": {outcome: [str(job_id) for job_id in ids] for outcome, ids in self.outcomes.items()},
            "flushed": self.flushed,
            "hurried": self.hurried,
        }
