"""The admin: look at jobs and processes, cancel jobs. Nothing is editable."""

from . import jobs, processes

__all__ = ["jobs", "processes"]
