"""@job refuses what cannot work when it is written, not when it runs."""

import importlib.util
import inspect
from collections.abc import Iterator
from datetime import datetime, timedelta

import pytest

from django_boundedpool import JobFunction, Retry, job
from django_boundedpool import jobs as jobs_module
from django_boundedpool.engine.errors import ConfigurationError
from django_boundedpool.jobs import registered

from . import jobs_for_tests

pytestmark = pytest.mark.fast


@pytest.fixture(autouse=True)
def _registry() -> Iterator[None]:
    """Jobs declared by a test are gone after it."""
    before = dict(registered())
    yield
    jobs_module._registry.clear()
    jobs_module._registry.update(before)


def plain(a):
    return a


def of_context(context, a):
    return context, a


async def asynchronous():
    pass


async def async_generator():
    yield 1


def generator():
    yield 1


def test_a_job_is_still_a_function():
    assert jobs_for_tests.add(1, 2) == 3
    assert isinstance(jobs_for_tests.add, JobFunction)
    assert jobs_for_tests.hold.__doc__ == "Runs until the gate opens."


def test_its_name_is_its_dotted_path_or_what_it_is_given():
    assert jobs_for_tests.add.spec.name == "tests.jobs.jobs_for_tests.add"
    assert job(name="reports.build")(plain).spec.name == "reports.build"


def test_options_are_read_with_units():
    declared = job(timeout=timedelta(minutes=1), start_deadline=5, priority=-3, retention=60)(plain)
    assert (declared.spec.timeout, declared.spec.start_deadline, declared.spec.priority) == (60, 5, -3)


@pytest.mark.parametrize(
    ("word", "ours"),
    [("bind", "takes_context"), ("countdown", "run_after"), ("eta", "run_after"), ("max_retries", "retry="),
     ("expires", "start_deadline"), ("queue", "pool"), ("rate_limit", "WORKERS"), ("soft_time_limit", "timeout")],
)  # fmt: skip
def test_words_from_elsewhere_name_ours(word, ours):
    with pytest.raises(ConfigurationError, match=ours):
        job(**{word: 1})(plain)


@pytest.mark.parametrize("method", ["delay", "apply_async", "enqueue"])
def test_methods_from_elsewhere_name_ours(method):
    with pytest.raises(AttributeError, match="submit"):
        getattr(jobs_for_tests.add, method)


@pytest.mark.parametrize(
    "options",
    [{"priority": 101}, {"priority": True}, {"timeout": 0}, {"timeout": "5"}, {"retry": 3}, {"pool": None}, {"typo": 1},
     {"takes_context": 1}, {"sensitive": "password"}, {"public_errors": (1,)}, {"retention": -1}, {"name": 5},
     {"owner_limit": 0}, {"owner_limit": True}, {"lane": "gpu"}],
)  # fmt: skip
def test_an_impossible_option_is_refused(options):
    with pytest.raises(ConfigurationError, match=next(iter(options))):
        job(**options)(plain)


@pytest.mark.parametrize(
    ("function", "why"),
    [(async_generator, "generator"), (generator, "generator"), (lambda: 1, "module level"), (len, "module level"),
     (jobs_for_tests.add, "job already")],
)  # fmt: skip
def test_only_plain_functions_at_module_level_are_jobs(function, why):
    with pytest.raises(ConfigurationError, match=why):
        job(function)


def test_an_async_function_is_a_job_and_calling_it_gives_its_coroutine():
    declared = job(asynchronous)
    assert declared.spec.asynchronous
    coroutine = declared()
    assert inspect.iscoroutine(coroutine)
    coroutine.close()


def test_an_async_job_cannot_be_in_the_cpu_lane():
    with pytest.raises(ConfigurationError, match="would stop the event loop"):
        job(lane="cpu")(asynchronous)


def test_a_method_is_no_job():
    class Thing:
        def method(self):
            pass

    with pytest.raises(ConfigurationError, match="module level"):
        job(Thing.method)


def test_two_jobs_of_one_name_are_refused():
    with pytest.raises(ConfigurationError, match="Two jobs"):
        job(name="tests.jobs.jobs_for_tests.add")(plain)


def test_a_context_needs_a_parameter():
    with pytest.raises(ConfigurationError, match="takes_context"):
        job(takes_context=True)(jobs_for_tests.counts_users.spec.function)


def test_using_gives_a_changed_copy():
    changed = jobs_for_tests.add.using(priority=5, batch="b", retry=Retry(max_attempts=2))
    assert changed.spec.priority == 5
    assert jobs_for_tests.add.spec.priority == 0
    again = changed.using(batch="c")
    assert (again.spec, again._call.batch, changed._call.batch) == (changed.spec, "c", "b")
    assert (again(1, 2), again.__name__) == (3, "add")


@pytest.mark.parametrize(
    "options",
    [{"name": "x"}, {"sensitive": ()}, {"takes_context": True}, {"lane": "cpu"}, {"typo": 1}, {"batch": "x" * 192},
     {"wait": -1}, {"wait": "1"}, {"deadline": datetime(2030, 1, 1)}, {"run_after": -1}, {"run_after": "soon"}],
)  # fmt: skip
def test_using_refuses_what_belongs_elsewhere(options):
    with pytest.raises(ConfigurationError, match=next(iter(options))):
        jobs_for_tests.add.using(**options)


def test_an_unsaved_owner_is_refused():
    from django.contrib.auth.models import User

    with pytest.raises(ValueError, match="save it first"):
        jobs_for_tests.add.using(owner=User(username="new"))


# What looks like a parameter for the context, or like another job


def only_words(**options):
    return options


def only_keywords(*, context):
    return context


def only_rest(*rest):
    return rest


def positional_only(context, /):
    return context


@pytest.mark.parametrize("function", [only_words, only_keywords, only_rest])
def test_a_context_needs_a_first_positional_parameter(function):
    with pytest.raises(ConfigurationError, match="first positional parameter"):
        job(takes_context=True)(function)


def test_a_context_may_be_positional_only():
    assert job(takes_context=True)(positional_only).spec.takes_context


@pytest.mark.parametrize("option", ["timeout", "start_deadline", "retention"])
@pytest.mark.parametrize("duration", [1e10, 1e12, 10**400, timedelta.max, float("inf")])
def test_a_duration_that_no_date_or_wait_can_hold_is_refused(option, duration):
    with pytest.raises(ConfigurationError, match=option):
        job(**{option: duration})(plain)
    with pytest.raises(ConfigurationError, match=option):
        jobs_for_tests.add.using(**{option: duration})


def test_two_jobs_of_one_name_in_one_file_are_refused():
    job(name="tests.declared.twice")(plain)
    with pytest.raises(ConfigurationError, match="Two jobs"):
        job(name="tests.declared.twice")(of_context)


def test_a_module_may_be_loaded_again(tmp_path):
    source = tmp_path / "reloaded_jobs.py"
    source.write_text(
        "from django_boundedpool import job\n\n\n@job(name='tests.reloaded')\ndef work():\n    return 1\n"
    )
    for _ in range(2):
        spec = importlib.util.spec_from_file_location("reloaded_jobs", source)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        assert registered()["tests.reloaded"] is module.work
