"""What a newcomer gets wrong is answered with what to write."""

import logging
from collections.abc import Iterator

import pytest
from asgiref.sync import async_to_sync
from django.contrib.auth import get_user_model
from django.core.exceptions import SynchronousOnlyOperation
from django.utils.functional import SimpleLazyObject

from django_boundedpool import InvalidArguments, PayloadTooLarge, QueueFull, job, pools, submit_many
from django_boundedpool import jobs as jobs_module
from django_boundedpool.engine.errors import ConfigurationError
from django_boundedpool.engine.record import describe_error
from django_boundedpool.jobs import MIDDLEWARE, registered

from . import jobs_for_tests as jobs


@pytest.fixture
def inline(settings, db):
    settings.BOUNDED_POOL_OPTIONS = {"INLINE": True}


@pytest.fixture(autouse=True)
def _registry() -> Iterator[None]:
    before = dict(registered())
    yield
    jobs_module._registry.clear()
    jobs_module._registry.update(before)


def plain(a):
    return a


class Thing:
    def method(self):
        pass

    @classmethod
    def of_class(cls):
        pass

    @staticmethod
    def static():
        pass


# Declaring ------------------------------------------------------------------------------------------------------------


@pytest.mark.fast
@pytest.mark.parametrize(
    "function", [Thing.method, Thing().method, Thing.of_class, Thing.__dict__["of_class"], Thing.__dict__["static"]]
)
def test_what_belongs_to_a_class_is_to_be_moved(function):
    with pytest.raises(ConfigurationError, match="move it to module level and pass the object's primary key"):
        job(function)


@pytest.mark.fast
def test_the_name_of_a_pool_is_an_option():
    with pytest.raises(ConfigurationError, match=r'write @job\(pool="reports"\)'):
        job("reports")


@pytest.mark.fast
@pytest.mark.parametrize("option", ["on_lost", "at_most_once", "on_shutdown"])
def test_options_of_a_later_version_are_named_as_such(option):
    with pytest.raises(ConfigurationError, match=f"does not have {option} yet"):
        job(**{option: 1})(plain)


@pytest.mark.fast
def test_an_owner_is_given_at_the_submit():
    for option in ("owner", "wait", "deadline", "run_after"):
        with pytest.raises(ConfigurationError, match=rf"belongs to using\({option}=...\)"):
            job(**{option: 1})(plain)


# using ----------------------------------------------------------------------------------------------------------------


@pytest.mark.fast
@pytest.mark.parametrize("option", ["idempotency_key", "hand_over"])
def test_using_names_what_a_later_version_has(option):
    with pytest.raises(ConfigurationError, match=f"does not have {option} yet"):
        jobs.add.using(**{option: 1})


@pytest.mark.fast
def test_using_lists_what_it_takes_and_what_was_meant():
    with pytest.raises(ConfigurationError) as caught:
        jobs.add.using(timout=3)
    text = str(caught.value)
    assert "did you mean timeout?" in text
    listed = text.split("There are ")[1].rstrip(".").split(", ")
    assert {"owner", "batch", "correlation_id", "pool"} <= set(listed)
    assert not {"name", "takes_context", "sensitive"} & set(listed)


# submit ---------------------------------------------------------------------------------------------------------------


def test_an_option_among_the_arguments_is_sent_to_using(inline):
    with pytest.raises(InvalidArguments, match=r"'owner' is an option: using\(owner=...\).submit\(...\)\."):
        jobs.echo.submit("a", owner=3)
    with pytest.raises(InvalidArguments, match=r"countdown: here it is using\(run_after="):
        jobs.echo.submit("a", countdown=3)
    with pytest.raises(InvalidArguments, match=r"'run_after' is an option: using\(run_after=...\)"):
        jobs.echo.submit("a", run_after=3)
    with pytest.raises(InvalidArguments, match="does not have idempotency_key yet"):
        jobs.echo.submit("a", idempotency_key="k")
    with pytest.raises(InvalidArguments) as caught:
        jobs.echo.submit("a", other=3)
    assert "option" not in str(caught.value)


def test_an_argument_is_called_by_its_place_and_its_parameter(inline):
    with pytest.raises(InvalidArguments, match=r"args\[0\] \('value'\)\[1\] is a set"):
        jobs.echo.submit([1, {2}])
    with pytest.raises(InvalidArguments, match=r"kwargs\['value'\] is a set"):
        jobs.echo.submit(value={2})


def test_a_lazy_user_is_called_a_user(inline, user):
    with pytest.raises(InvalidArguments) as caught:
        jobs.echo.submit(SimpleLazyObject(lambda: user))
    assert "args[0] ('value') is a django.contrib.auth.models.User, which is not a JSON value" in str(caught.value)
    assert "pass its primary key" in str(caught.value)


@pytest.mark.fast
@pytest.mark.parametrize(
    ("method", "hint"),
    [("submit_many", "django_boundedpool.submit_many([(job, args, kwargs), ...])"),
     ("asubmit_many", "await sync_to_async(django_boundedpool.submit_many)"),
     ("map", "django_boundedpool.submit_many([(job, args), ...])")],
)  # fmt: skip
def test_methods_that_people_look_for_say_what_to_write(method, hint):
    with pytest.raises(AttributeError) as caught:
        getattr(jobs.add, method)
    assert hint in str(caught.value)


def test_on_an_event_loop_the_owner_and_the_submit_have_their_line(db):
    async def view():
        with pytest.raises(SynchronousOnlyOperation, match=r"use owner=await request.auser\(\)"):
            jobs.add.using(owner=SimpleLazyObject(get_user_model().objects.first))
        jobs.add.submit(1)

    with pytest.raises(SynchronousOnlyOperation) as caught:
        async_to_sync(view)()
    assert "jobs_for_tests.add.submit() would block the event loop; use `await add.asubmit(...)`." in str(caught.value)

    async def many():
        submit_many([(jobs.add, (1,))])

    with pytest.raises(SynchronousOnlyOperation, match=r"submit_many\(\) would .* `await sync_to_async\(submit_many\)"):
        async_to_sync(many)()


@pytest.mark.parametrize("refused", [QueueFull, PayloadTooLarge])
def test_a_refusal_without_the_middleware_says_what_answers_it(inline, settings, monkeypatch, refused):
    if refused is QueueFull:
        monkeypatch.setattr(pools["default"], "check_open", lambda spec, **how: full())
    argument = "x" * 100_000

    def full():
        raise QueueFull("full", pool="default")

    with pytest.raises(refused) as caught:
        jobs.echo.submit(argument)
    assert not hasattr(caught.value, "__notes__")
    settings.MIDDLEWARE = []
    with pytest.raises(refused) as caught:
        jobs.echo.submit(argument)
    assert MIDDLEWARE in caught.value.__notes__[0]
    assert "@overload_responses" in caught.value.__notes__[0]


# Pools, progress and errors -------------------------------------------------------------------------------------------


def test_a_pool_that_does_not_exist_lists_those_that_do(settings):
    settings.BOUNDED_POOLS = {"default": {}, "reports": {}}
    with pytest.raises(KeyError) as caught:
        pools["x"]
    assert str(caught.value) == "There is no pool 'x'; BOUNDED_POOLS has 'default', 'reports'."
    assert isinstance(caught.value, ConfigurationError)
    assert "x" not in pools
    assert pools.get("x") is None


@job(timeout=60, takes_context=True)
def reports(context, *fractions):
    for fraction in fractions:
        context.progress(fraction)
    return context._record.progress


@pytest.mark.parametrize("fraction", ["half", "0.5", None, float("nan"), [1]])
def test_a_progress_that_is_no_number_is_named(inline, fraction):
    with pytest.raises(ValueError, match=r"progress\(.*\): give a number from 0 to 1"):
        job(takes_context=True)(progress_of).submit(repr(fraction)).result()


def progress_of(context, text):
    context.progress(eval(text, {"nan": float("nan")}))


@pytest.mark.parametrize(("fraction", "kept"), [(1.1, 1.0), (-0.1, 0.0), (10**18, 1.0)])
def test_a_progress_out_of_range_is_cut_and_logged_once(inline, caplog, fraction, kept):
    with caplog.at_level(logging.WARNING, "django_boundedpool.jobs"):
        assert reports.submit(fraction, fraction).result() == kept
    assert len([record for record in caplog.records if "counts as" in record.getMessage()]) == 1


@pytest.mark.fast
def test_our_own_errors_are_stored_under_the_path_from_which_they_are_imported():
    assert describe_error(QueueFull("full", pool="default"))["type"] == "django_boundedpool.QueueFull"
