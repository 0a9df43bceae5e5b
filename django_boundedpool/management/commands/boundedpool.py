"""``manage.py boundedpool prune``: housekeeping from a cron job."""

from __future__ import annotations

import argparse
import math
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import DatabaseError
from django.utils.connection import ConnectionDoesNotExist

from ... import conf
from ...engine.errors import ConfigurationError
from ...store import retention, writes


def _seconds(text: str) -> float:
    value = float(text)
    if not (math.isfinite(value) and value > 0):
        raise argparse.ArgumentTypeError("give more than 0 seconds")
    return value


def _rows(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("give at least 1")
    return value


class Command(BaseCommand):
    """Subcommands for the operator of the pools. Exit code 0: done as asked; 1: not possible; 2: wrong arguments."""

    help = "Look after the pools' rows."

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare the subcommands."""
        commands = parser.add_subparsers(dest="command", required=True, metavar="command")
        prune = commands.add_parser("prune", help="Delete the rows of jobs whose retention has passed.")
        prune.add_argument("--dry-run", action="store_true", help="Only say how many rows would be deleted.")
        prune.add_argument("--budget", type=_seconds, metavar="SECONDS", help="Begin no further batch after this time.")
        prune.add_argument("--batch", type=_rows, default=retention.BATCH, metavar="ROWS", help="Rows per transaction.")

    def handle(self, *args: Any, command: str, **options: Any) -> None:
        """Run the chosen subcommand."""
        try:
            _pools, process = conf.load()
        except ConfigurationError as error:
            raise CommandError(str(error)) from None
        alias = writes.alias_for_write(process.database)
        try:
            self._prune(alias, dry_run=options["dry_run"], budget=options["budget"], batch=options["batch"])
        except (DatabaseError, ConnectionDoesNotExist) as error:
            raise CommandError(f"Database {alias!r} cannot be used: {error}") from error

    def _prune(self, alias: str, *, dry_run: bool, budget: float | None, batch: int) -> None:
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
