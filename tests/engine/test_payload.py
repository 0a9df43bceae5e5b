"""Arguments and results as JSON."""

import json
import threading
import uuid
from datetime import UTC, datetime
from decimal import Decimal
from enum import StrEnum

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_boundedpool.engine.payload import MAX_DEPTH, NotJson, decode, encode, printable, size

pytestmark = pytest.mark.fast

TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT,
    lambda inner: st.lists(inner) | st.dictionaries(TEXT, inner),
    max_leaves=20,
)


class Colour(StrEnum):
    RED = "red"


class Sly(str):
    pass


@given(JSON)
def test_json_values_come_back_unchanged_and_as_a_copy(value):
    text = encode(value, "args")
    assert decode(text) == value
    assert json.loads(text) == value
    assert size(text) == len(text.encode())


def test_a_tuple_comes_back_as_a_list():
    assert decode(encode((1, (2,)), "args")) == [1, [2]]


@pytest.mark.parametrize(
    ("value", "path", "remedy"),
    [
        ({"a": [1, object()]}, "args['a'][1]", "string"),
        ([float("nan")], "args[0]", "nan"),
        ([float("inf")], "args[0]", "inf"),
        ({1: 2}, "args", "keys are strings"),
        ({(): 2}, "args", "keys are strings"),
        (["a\0b"], "args[0]", "NUL"),
        ({"a\0": 1}, "a key of args", "NUL"),
        (["\ud800"], "args[0]", "surrogate"),
        ([b"x"], "args[0]", "decode it"),
        ([{1}], "args[0]", "pass a list"),
        ([datetime.now(UTC)], "args[0]", "isoformat"),
        ([uuid.uuid4()], "args[0]", "str(value)"),
        ([Decimal(1)], "args[0]", "str(value)"),
        ([Colour.RED], "args[0]", "str(value)"),
        ([Sly("x")], "args[0]", "str(value)"),
        ([2**63], "args[0]", "64 bits"),
        ([threading.Lock()], "args[0]", "not a JSON value"),
        ([lambda: None], "args[0]", "not a JSON value"),
        ([i for i in [(j for j in "ab")]], "args[0]", "not a JSON value"),
    ],
)
def test_S04_what_json_cannot_carry_is_refused_with_its_path(value, path, remedy):
    with pytest.raises(NotJson) as caught:
        encode(value, "args")
    assert str(caught.value).startswith(f"{path} ")
    assert remedy in str(caught.value)


def test_S04_a_value_that_contains_itself_is_refused():
    loop: list[object] = []
    loop.append(loop)
    with pytest.raises(NotJson, match="contains itself"):
        encode(loop, "args")


def test_S07_nesting_of_5000_is_refused_and_30_is_taken():
    deep: object = 1
    for _ in range(5000):
        deep = [deep]
    with pytest.raises(NotJson, match="deeper than 30"):
        encode(deep, "args")
    fits: object = 1
    for _ in range(MAX_DEPTH):
        fits = [fits]
    assert decode(encode(fits, "args")) == fits


def test_size_counts_utf8_bytes():
    assert size("é") == 2
    assert size("日本") == 6


@given(st.text())
def test_printable_text_can_be_stored_anywhere(text):
    clean = printable(text, 50)
    assert "\0" not in clean
    clean.encode()
    assert len(clean) <= 50
