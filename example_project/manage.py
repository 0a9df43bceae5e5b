#!/usr/bin/env python
import os
import sys
from pathlib import Path


def main() -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "linkdemo.settings")
    try:
        from django.core.management import execute_from_command_line
    except ImportError:
        root = Path(__file__).resolve().parent.parent
        sys.exit(f"Django is not installed for {sys.executable}. Run `make demo` in {root}; it makes a venv first.")
    execute_from_command_line(sys.argv)


if __name__ == "__main__":
    main()
