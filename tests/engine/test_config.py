"""Settings become records, or a list of everything that is wrong with them."""

from datetime import timedelta

import pytest

from django_boundedpool.engine.config import POOL_KEYS, PoolConfig, read_options, read_pools, refuse, seconds
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


@pytest.mark.parametrize(
    ("key", "value"), [("HAND_OVER_TO", "alias"), ("OVERFLOW", "hand_over"), ("ADOPT_WITHIN", 60), ("LINGER", 1)]
)
def test_a_feature_that_is_not_built_yet_says_so(key, value):
    fault = only_fault({key: value})
    assert "does not have that feature yet" in fault.remedy


def test_only_the_default_of_a_feature_that_is_not_built_yet_is_taken():
    defaults = {"HAND_OVER_TO": None, "OVERFLOW": "reject", "ADOPT_WITHIN": 3600, "LINGER": 0.05}
    configs, faults = read_pools({"default": defaults})
    assert not faults
    assert configs["default"] == PoolConfig()


@pytest.mark.parametrize("persist", ["commit", "memory"])
def test_rows_are_written_at_commit_or_never(persist):
    configs, faults = read_pools({"default": {"PERSIST": persist}})
    assert not faults
    assert configs["default"].persist == persist


@pytest.mark.parametrize("value", [None, True, "", "disk", 5])
def test_an_unknown_way_to_persist_is_refused(value):
    assert only_fault({"PERSIST": value}).remedy == "give 'commit' or 'memory'."


def test_rows_that_follow_later_are_not_built_yet_and_say_so():
    assert "does not have 'behind' yet" in only_fault({"PERSIST": "behind"}).remedy


def test_priority_shares_are_read_as_given():
    configs, faults = read_pools({"default": {"PRIORITY_SHARES": {-1: 0.8, -50: 0, 100: 1}}})
    assert not faults
    assert dict(configs["default"].priority_shares) == {-1: 0.8, -50: 0.0, 100: 1.0}


@pytest.mark.parametrize(
    "value",
    [None, 0.8, [(-1, 0.8)], {-101: 0.5}, {101: 0.5}, {True: 0.5}, {"-1": 0.5}, {-1: 1.01}, {-1: -0.1}, {-1: True},
     {-1: "0.8"}, {-1: float("nan")}],
)  # fmt: skip
def test_priority_shares_that_cannot_work_are_refused(value):
    assert "such as {-1: 0.8}" in only_fault({"PRIORITY_SHARES": value}).remedy


@pytest.mark.parametrize("value", [None, 1, 0, "yes"])
def test_shed_is_true_or_false(value):
    assert only_fault({"SHED": value}).remedy == "give True or False."
    assert read_pools({"default": {"SHED": True}})[0]["default"].shed is True


@pytest.mark.parametrize("value", [-0.1, 3601, None, True, "5", float("nan"), timedelta(days=1)])
def test_a_wait_is_at_most_an_hour(value):
    assert "from 0 seconds to 3600 seconds" in only_fault({"WAIT": value}).remedy


@pytest.mark.parametrize("value", [0, 0.5, 3600, timedelta(seconds=2)])
def test_a_wait_is_seconds_or_a_timedelta(value):
    configs, faults = read_pools({"default": {"WAIT": value}})
    assert not faults
    assert configs["default"].wait == seconds(value)


@pytest.mark.parametrize("value", [0, -1, 1.5, True, "5", 1_000_001])
def test_an_owner_limit_is_a_whole_number_or_none(value):
    assert only_fault({"OWNER_LIMIT": value}).remedy == "give a whole number from 1 to 1000000, or None."


@pytest.mark.parametrize("value", [None, 1, 1_000_000])
def test_an_owner_limit_may_be_none(value):
    configs, faults = read_pools({"default": {"OWNER_LIMIT": value}})
    assert not faults
    assert configs["default"].owner_limit == value


@pytest.mark.parametrize("value", [-1, None, "1h", 367 * 86400, float("inf")])
def test_a_deferral_is_at_most_a_year(value):
    assert "to 366 days" in only_fault({"MAX_DEFER": value}).remedy


def test_no_deferral_at_all_may_be_asked_for():
    configs, faults = read_pools({"default": {"MAX_DEFER": 0}})
    assert not faults
    assert configs["default"].max_defer == 0


@pytest.mark.parametrize("value", [3, None, "project.carriers.tenant", ["tenant"], [3], {"project.tenant": 1}])
def test_carriers_are_dotted_paths(value):
    assert "such as ('project.carriers.tenant',)" in only_fault({"CARRY": value}).remedy


@pytest.mark.parametrize("given", [[], (), ["project.tenant"], ("project.tenant", "project.trace")])
def test_carriers_may_be_a_list_or_a_tuple(given):
    configs, faults = read_pools({"default": {"CARRY": given}})
    assert not faults
    assert configs["default"].carry == tuple(given)


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


@pytest.mark.parametrize("typo", ["LINGERS", "OVERFLOWS", "HAND_OVER_TOO", "ADOPT_WITHINN"])
def test_a_key_that_is_not_built_yet_is_no_suggestion(typo):
    assert typo[:-1] not in only_fault({typo: 1}).remedy


def test_a_retention_names_the_state_that_is_none():
    assert "'done' is no state that a job ends in" in only_fault({"RETENTION": {"done": 5}}).remedy


def test_a_range_is_given_in_days_where_that_is_readable():
    assert only_fault({"TIMEOUT": 0}).remedy == "give seconds or a timedelta, from 0.001 seconds to 366 days, or None."
    assert only_fault({"DRAIN_TIMEOUT": 0}).remedy == "give seconds or a timedelta, from 0.1 seconds to 1 day."
