"""Stored data as HTML: every value passes through `format_html`, so nothing that a job stored becomes markup."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from datetime import datetime

from django.utils import timezone
from django.utils.dateparse import parse_datetime
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString, mark_safe
from django.utils.translation import gettext as _

from ..models import Job

NOTHING = "-"
#: A page shows no more of one value than this many characters.
MOST_SHOWN = 100_000


def badge(kind: str, text: object, note: str = "") -> SafeString:
    """Return a coloured label, and a note beside it.

    Arguments:
        kind: the end of its CSS class; a fixed word, never stored data.
        text: what it says.
        note: added in small print.
    """
    shown = format_html('<span class="bp-badge bp-{}">{}</span>', kind, text)
    return format_html('{} <span class="bp-note">{}</span>', shown, note) if note else shown


def state_badge(job: Job) -> SafeString:
    """Return the state of a job with its reason, and what was asked of it."""
    state = job.known_state
    notes = [job.reason] if job.reason else []
    if job.attempt > 1:
        notes.append(_("attempt\N{NO-BREAK SPACE}%d") % job.attempt)
    if job.cancel_requested:
        notes.append(_("cancel requested"))
    if job.overdue:
        notes.append(_("overdue"))
    return badge(state.value if state else "unknown", dict(Job.STATES).get(job.state, job.state), ", ".join(notes))


def dotted_name(name: str) -> SafeString:
    """Return a dotted name that a narrow column may break after each dot and underscore."""
    return format_html_join(mark_safe("<wbr>"), "{}", ((part,) for part in re.split(r"(?<=[._])", name)))


def text_block(text: str) -> SafeString:
    """Return text with its lines kept, scrollable where it is wide."""
    if len(text) > MOST_SHOWN:
        text = text[:MOST_SHOWN] + "\n" + _("… %d characters more") % (len(text) - MOST_SHOWN)
    # Focusable, so that the keyboard can scroll it.
    return format_html('<pre class="bp-data" tabindex="0">{}</pre>', text)


def json_block(value: object) -> SafeString:
    """Return a JSON value, indented."""
    return text_block(json.dumps(value, indent=2, ensure_ascii=False, default=str))


def error_line(error: object) -> SafeString | str:
    """Return type and message of a stored error."""
    if not isinstance(error, Mapping):
        return json_block(error) if error else NOTHING
    return format_html("<strong>{}</strong> {}", error.get("type", ""), error.get("message", ""))


def attempts_table(attempts: object) -> SafeString | str:
    """Return the attempts as a table; as JSON where another version wrote something else."""
    if not attempts:
        return NOTHING
    if not isinstance(attempts, Sequence) or not all(isinstance(entry, Mapping) for entry in attempts):
        return json_block(attempts)
    rows = format_html_join(
        "",
        "<tr><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>",
        (
            (
                entry.get("attempt", ""),
                moment(parsed(entry.get("started_at"))),
                seconds(entry.get("ran")),
                entry.get("outcome", ""),
                error_line(entry.get("error")),
            )
            for entry in attempts
        ),
    )
    heads = format_html_join(
        "", '<th scope="col">{}</th>', ((t,) for t in (_("Attempt"), _("Started"), _("Ran"), _("Outcome"), _("Error")))
    )
    return format_html(
        '<div class="bp-scroll"><table class="bp-attempts"><thead><tr>{}</tr></thead><tbody>{}</tbody></table></div>',
        heads,
        rows,
    )


def seconds(value: object) -> str:
    """Return a duration for people."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return NOTHING
    value = max(0.0, value)
    if value < 60:
        return f"{value:.2f} s"
    minutes, rest = divmod(round(value), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {rest:02} s"


def moment(value: datetime | None) -> str:
    """Return a moment in the current time zone, to the second."""
    if value is None:
        return NOTHING
    return (timezone.localtime(value) if timezone.is_aware(value) else value).strftime("%Y-%m-%d %H:%M:%S")


def parsed(text: object) -> datetime | None:
    """Return the moment that a stored text spells, or None."""
    try:
        return parse_datetime(text) if isinstance(text, str) else None
    except ValueError:
        return None
