"""The parts of `manage.py demo`: child processes, a scripted browser, and the report it prints."""
