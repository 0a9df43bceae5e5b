"""The Django store: how jobs become rows, and rows become the truth after a crash."""
