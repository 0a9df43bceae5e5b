"""What the demo watches while the batch runs, and what it proves at the end."""

import re
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from django_boundedpool.models import Job

from ..models import Batch, Link
from ..progress import OVER, PROBLEMS, Status, batch_jobs, look_at

SAMPLES_PER_STATUS = 4


@dataclass
class Watch:
    """Highest values seen in the answers of the progress endpoint."""

    bound: int = 0
    peak: int = 0
    peak_queued: int = 0
    peak_running: int = 0
    refusals: int = 0
    codes: Counter[str] = field(default_factory=Counter)

    def look(self, answer: dict[str, Any]) -> None:
        pool = answer["pool"]
        self.bound = pool["queue_size"] + pool["workers"]
        self.peak = max(self.peak, pool["queued"] + pool["running"])
        self.peak_queued = max(self.peak_queued, pool["queued"])
        self.peak_running = max(self.peak_running, pool["running"])
        self.refusals = answer["refusals"]
        if answer["refusal"]:
            self.codes[answer["refusal"]] += 1


def progress_line(answer: dict[str, Any], seconds: float) -> str:
    counts = {part["status"]: part["count"] for part in answer["bar"]}
    pool = answer["pool"]
    # "waiting" is said of the pool's queue alone; these links have no job yet.
    names = {"waiting": "unfed"}
    shown = " ".join(f"{names.get(status, status)} {count}" for status, count in counts.items() if count)
    full = "  POOL FULL" if answer["refusal"] == "queue_full" else ""
    return (
        f"{seconds:5.1f} s  {answer['done']:>3}/{answer['total']} done"
        f"  pool {pool['queued']:>3}/{pool['queue_size']} waiting {pool['running']}/{pool['workers']} running"
        f"  {shown}{full}"
    )


def result_table(batch: Batch) -> str:
    progress = look_at(batch)
    lines = ["Result", "------"]
    lines += [f"{s.label:<18}{progress.counts[s]:>5}" for s in Status if progress.counts[s]]
    lines += ["", "What was found wrong", "--------------------"]
    for status in PROBLEMS:
        rows = [row for row in progress.rows if row.status is status]
        for row in rows[:SAMPLES_PER_STATUS]:
            url = re.sub(r"^http://127\.0\.0\.1:\d+", "", row.link.url)
            lines.append(f"{status.label:<11} {url[:44]:<45} {row.detail}")
        if len(rows) > SAMPLES_PER_STATUS:
            lines.append(f"{status.label:<11} ... and {len(rows) - SAMPLES_PER_STATUS} more")
    return "\n".join(lines)


def finished_total(metrics: str) -> int:
    """Jobs of all states that ended, from the text of /metrics."""
    found = re.findall(r"^django_boundedpool_finished_total\{[^}]*\} (\S+)$", metrics, re.MULTILINE)
    return round(sum(map(float, found)))


def verify(batch: Batch, watch: Watch, metrics: str) -> list[str]:
    """Everything that the pool promised and did not keep, in words. Empty when all is well."""
    faults = []
    links = list(batch.links.values_list("pk", "feeding", "job_id"))
    job_ids = [job_id for _, _, job_id in links if job_id]
    states = dict(Job.objects.filter(pk__in=job_ids).values_list("pk", "state"))
    if unfed := sum(feeding != Link.Feeding.ACCEPTED for _, feeding, _ in links):
        faults.append(f"{unfed} links never got a job")
    if len(set(job_ids)) != len(job_ids):
        faults.append("two links share one job")
    if lost := [job_id for job_id in job_ids if job_id not in states]:
        faults.append(f"{len(lost)} accepted jobs have no row, the first is {lost[0]}")
    if open_jobs := [job_id for job_id, state in states.items() if state not in OVER]:
        faults.append(f"{len(open_jobs)} jobs are in no terminal state, the first is {open_jobs[0]}")
    if (rows := batch_jobs(batch).count()) != len(job_ids):
        faults.append(f"{len(job_ids)} links hold a job, but there are {rows} jobs")
    if watch.peak > watch.bound:
        faults.append(f"the pool held {watch.peak} jobs, {watch.peak - watch.bound} above its bound")
    # Counters live in their process: a server that was restarted meanwhile starts at 0. More than expected is no fault
    # either, as jobs that an earlier run left behind are counted, too.
    one_process = batch_jobs(batch).values("process").distinct().count() == 1
    if one_process and (ended := finished_total(metrics)) < len(job_ids):
        faults.append(f"/metrics counts {ended} finished jobs instead of {len(job_ids)}")
    return faults


def job_states(batch: Batch) -> str:
    """How many jobs ended in which state: "235 succeeded, 5 failed"."""
    counts = Counter(batch_jobs(batch).values_list("state", flat=True))
    return ", ".join(f"{count} {state}" for state, count in counts.most_common())
