"""Job ids: UUIDs of version 7 (RFC 9562, section 5.7), ordered by the millisecond of their submit.

Kept as integers inside the engine: making a `uuid.UUID` costs as much as everything else a submit does. The 74 bits
beside the milliseconds are a counter from a random start (section 6.2, method 2): unique, but no secret; whoever holds
an id is still asked for permission.
"""

from __future__ import annotations

import itertools
import os
import time
import uuid
from collections.abc import Iterator

_VERSION = 7 << 76
_VARIANT = 0b10 << 62


def _start() -> Iterator[int]:
    # The upper bit of the counter's part is 0, so that no process will ever carry into the variant.
    high, low = int.from_bytes(os.urandom(8), "big") >> 52, int.from_bytes(os.urandom(8), "big") >> 3
    return itertools.count(_VERSION | high << 64 | _VARIANT | low)


_rest = _start()


def reseed() -> None:
    """Start anew from random bits: two processes forked from one must not make the same ids."""
    global _rest
    _rest = _start()


os.register_at_fork(after_in_child=reseed)


def uuid7_int() -> int:
    """Return a new UUID version 7 as an integer. Safe from any thread."""
    return (time.time_ns() // 1_000_000 << 80) + next(_rest)


def uuid7() -> uuid.UUID:
    """Return a new UUID version 7. Safe from any thread."""
    return uuid.UUID(int=uuid7_int())
