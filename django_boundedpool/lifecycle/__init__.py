"""This process: when the pools start, who tells them to stop, and what happens until the last write."""
