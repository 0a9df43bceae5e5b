"""The bounded pool itself: states, admission, workers, retries, drain. Imports no Django."""
