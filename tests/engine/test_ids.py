"""Job ids."""

import uuid

import pytest

from django_boundedpool.engine import ids

pytestmark = pytest.mark.fast


def test_ids_have_the_version_and_variant_bits_that_databases_check():
    one = ids.uuid7()
    assert one.version == 7
    assert one.variant == uuid.RFC_4122


def test_ids_are_unique_and_ordered_by_their_millisecond(monkeypatch):
    moment = 1_700_000_000_000_000_000
    monkeypatch.setattr(ids.time, "time_ns", lambda: moment)
    same = {ids.uuid7() for _ in range(1000)}
    assert len(same) == 1000
    monkeypatch.setattr(ids.time, "time_ns", lambda: moment + 1_000_000)
    assert max(same) < ids.uuid7()
    assert int.from_bytes(min(same).bytes[:6], "big") == moment // 1_000_000
