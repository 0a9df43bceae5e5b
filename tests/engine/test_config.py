"""Settings become records, or a list of everything that is wrong with them."""

from datetime import timedelta

import pytest

from django_boundedpool.engine.config import POOL_KEYS, PoolConfig, read_options, read_pools, refuse
from django_boundedpool.engine.errors import ConfigurationError
from django_boundedpool.engine.states import JobState

pytestmark = pytest.mark.fast


def only_fault(values):
    _configs, faults = read_pools({"default": values})
    assert len(faults) == 1
    return faults[0]


def test_no_settings_give_one_pool_with_the_documented_defaults():
    configs, faults = read_pools({})
    assert not faults
    assert configs == {"default": PoolConfig()}
    config = configs["default"]
    assert (config.workers, config.queue_size, config.queue_bytes) == (4, 100, 16 * 1024 * 1024)
    assert (config.drain_timeout, config.interrupt_after, config.give_up_after) == (20, 15, 18)
    assert config.retention[JobState.ABANDONED] == 30 * 86400


@pytest.mark.parametrize("key", ["WORKERS", "QUEUE_SIZE"])
@pytest.mark.parametrize("value", [-1, None, True, 1.5, "10"])
def test_V06_a_count_that_is_no_whole_number_is_refused(key, value):
    fault = only_fault({key: value})
    assert key in fault.path
    assert fault.value is value
    assert "whole number" in fault.remedy


def test_V06_zero_workers_are_refused_and_a_queue_of_zero_means_nothing_waits():
    assert "from 1 to" in only_fault({"WORKERS": 0}).remedy
    configs, faults = read_pools({"default": {"QUEUE_SIZE": 0}})
    assert not faults
    assert configs["default"].capacity == 4


@pytest.mark.parametrize(
    ("key", "suggestion"), [("WORKER", "WORKERS"), ("queue_size", "QUEUE_SIZE"), ("TIME_OUT", "TIMEOUT")]
)
def test_V06_an_unknown_key_names_the_one_that_was_meant(key, suggestion):
    assert f"did you mean {suggestion!r}" in only_fault({key: 1}).remedy


@pytest.mark.parametrize("value", [0, -1, "5", True, float("nan"), float("inf"), timedelta(0), object()])
def test_an_impossible_time_out_is_refused(value):
    assert "seconds" in only_fault({"TIMEOUT": value}).remedy


def test_durations_may_be_timedeltas():
    configs, _ = read_pools({"default": {"TIMEOUT": timedelta(minutes=2)}})
    assert configs["default"].timeout == 120


@pytest.mark.parametrize("key", ["SHED", "PERSIST", "OWNER_LIMIT", "PRIORITY_SHARES", "WAIT", "CARRY", "HAND_OVER_TO"])
def test_a_feature_that_is_not_built_yet_says_so(key):
    fault = only_fault({key: {"SHED": True, "PERSIST": "memory", "PRIORITY_SHARES": {-1: 0.8}}.get(key, 3)})
    assert "does not have that feature yet" in fault.remedy


def test_every_documented_key_is_known():
    documented = """WORKERS QUEUE_SIZE QUEUE_BYTES MAX_PAYLOAD_BYTES MAX_RESULT_BYTES PRIORITY_SHARES SHED AGEING WAIT
    OWNER_LIMIT TIMEOUT START_DEADLINE STUCK_AFTER MAX_DEFER RETRY_SHARE DRAIN_TIMEOUT CANCEL_GRACE ON_SHUTDOWN
    ADOPT_WITHIN RETENTION PERSIST LINGER CARRY HAND_OVER_TO OVERFLOW""".split()
    assert set(POOL_KEYS) == set(documented)


def test_retention_merges_into_the_defaults():
    configs, _ = read_pools({"default": {"RETENTION": {"succeeded": timedelta(hours=1)}}})
    assert configs["default"].retention[JobState.SUCCEEDED] == 3600
    assert configs["default"].retention[JobState.FAILED] == 7 * 86400


@pytest.mark.parametrize("value", [None, 5, {"done": 5}, {"succeeded": 0}, {"failed": "1d"}])
def test_a_retention_that_cannot_work_is_refused(value):
    assert "RETENTION" in only_fault({"RETENTION": value}).path


def test_a_short_drain_keeps_a_grace_that_fits_it():
    config = PoolConfig(drain_timeout=2.0)
    assert 0 < config.interrupt_after <= config.give_up_after < config.drain_timeout


@pytest.mark.parametrize(
    "values",
    [{"DRAIN_TIMEOUT": 5, "CANCEL_GRACE": 5}, {"QUEUE_BYTES": 100}, {"ON_SHUTDOWN": "release"}, {"RETRY_SHARE": 1.1}],
)
def test_contradictions_are_refused(values):
    only_fault(values)


def test_every_fault_is_reported_at_once():
    _, faults = read_pools({"default": {"WORKERS": 0, "TYPO": 1}, "bad name": {}, "other": 5})
    assert len(faults) == 4
    with pytest.raises(ConfigurationError) as caught:
        refuse(faults)
    for word in ("WORKERS", "TYPO", "bad name", "other"):
        assert word in str(caught.value)


@pytest.mark.parametrize("raw", [None, [], "default"])
def test_settings_that_are_no_dictionary_are_refused(raw):
    assert read_pools(raw)[1]
    assert read_options(raw)[1]


def test_a_process_is_not_lost_between_two_heartbeats():
    _, faults = read_options({"HEARTBEAT": 10, "LOST_AFTER": 15})
    assert "twice HEARTBEAT" in faults[0].remedy


@pytest.mark.parametrize(
    ("raw", "path", "remedy"),
    [
        ({"default": {"INLINE": True}}, "['default']['INLINE']", "INLINE belongs into BOUNDED_POOL_OPTIONS."),
        ({"INLINE": True}, "['INLINE']", "INLINE belongs into BOUNDED_POOL_OPTIONS."),
        ({"WORKERS": 4}, "['WORKERS']", 'did you forget the pool\'s name? {"default": {"WORKERS": 4}}'),
    ],
)
def test_a_key_in_the_wrong_place_is_sent_to_its_own(raw, path, remedy):
    (fault,) = read_pools(raw)[1]
    assert (fault.path, fault.remedy) == (f"BOUNDED_POOLS{path}", remedy)


def test_a_key_of_a_pool_among_the_options_is_sent_to_the_pool():
    (fault,) = read_options({"WORKERS": 3})[1]
    assert fault.remedy == "WORKERS belongs into BOUNDED_POOLS['default']."


@pytest.mark.parametrize("typo", ["SHEDD", "LINGERS", "OVERFLOWS", "WAITS"])
def test_a_key_that_is_not_built_yet_is_no_suggestion(typo):
    assert typo[:-1] not in only_fault({typo: 1}).remedy


def test_a_retention_names_the_state_that_is_none():
    assert "'done' is no state that a job ends in" in only_fault({"RETENTION": {"done": 5}}).remedy


def test_a_range_is_given_in_days_where_that_is_readable():
    assert only_fault({"TIMEOUT": 0}).remedy == "give seconds or a timedelta, from 0.001 seconds to 366 days, or None."
    assert only_fault({"DRAIN_TIMEOUT": 0}).remedy == "give seconds or a timedelta, from 0.1 seconds to 1 day."
