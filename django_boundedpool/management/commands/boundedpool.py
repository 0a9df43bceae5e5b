"""``manage.py boundedpool prune``: housekeeping from a cron job."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import DatabaseError

from ... import conf
from ...store import retention, writes


class Command(BaseCommand):
    """Subcommands for the operator of the pools."""

    help = "Look after the pools' rows."

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare the subcommands."""
        commands = parser.add_subparsers(dest="command", required=True, metavar="command")
        prune = commands.add_parser("prune", help="Delete the rows of jobs whose retention has passed.")
        prune.add_argument("--dry-run", action="store_true", help="Only say how many rows would be deleted.")
        prune.add_argument("--budget", type=float, metavar="SECONDS", help="Begin no further batch after this time.")
        prune.add_argument("--batch", type=int, default=retention.BATCH, metavar="ROWS", help="Rows per transaction.")

    def handle(self, *args: Any, command: str, **options: Any) -> None:
        """Run the chosen subcommand."""
        configs_and_options = conf.load()
        alias = writes.alias_for_write(configs_and_options[1].database)
        try:
            self._prune(alias, **options)
        except DatabaseError as error:
            raise CommandError(f"Database {alias!r} cannot be used: {error}") from error

    def _prune(self, alias: str, *, dry_run: bool, budget: float | None, batch: int, **_: Any) -> None:
        if batch < 1:
            raise CommandError(f"--batch {batch}: give at least 1.")
        if budget is not None and budget <= 0:
            raise CommandError(f"--budget {budget:g}: give more than 0 seconds.")
        if dry_run:
            self.stdout.write(f"{retention.expired(alias)} rows would be deleted.")
            return
        total = 0
        rewind = "\r" if self.stdout.isatty() else ""
        for deleted in retention.prune(alias, budget=budget, batch=batch):
            total += deleted
            if rewind:
                self.stdout.write(f"{rewind}{total} rows deleted", ending="")
        left = retention.expired(alias)
        end = "." if not left else f"; {left} are left for the next run."
        self.stdout.write(f"{rewind}{total} rows deleted{end}")
