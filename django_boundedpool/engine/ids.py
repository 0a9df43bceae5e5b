"""Job ids: UUIDs of version 7 (RFC 9562, section 5.7), ordered by the millisecond of their submit."""

from __future__ import annotations

import os
import time
import uuid


def uuid7() -> uuid.UUID:
    """Return a new UUID version 7: 48 bits of Unix milliseconds, then 74 random bits. Safe from any thread."""
    milliseconds = time.time_ns() // 1_000_000 & ((1 << 48) - 1)
    random = int.from_bytes(os.urandom(10), "big")
    rand_a = random >> 68  # the upper 12 of 80 bits
    rand_b = random & ((1 << 62) - 1)
    return uuid.UUID(int=(milliseconds << 80) | (7 << 76) | (rand_a << 64) | (0b10 << 62) | rand_b)
