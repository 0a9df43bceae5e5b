"""Which arguments are withheld from rows, and what a job may say about it."""

from collections.abc import Iterator

import pytest

from django_boundedpool import JobFunction, job
from django_boundedpool import jobs as jobs_module
from django_boundedpool.engine.errors import ConfigurationError
from django_boundedpool.models import Job
from django_boundedpool.testing import join

WITHHELD = jobs_module.WITHHELD


@job
def anything(first, *tokens, **options):
    return sorted(options)


@job(sensitive=())
def open_book(password, **options):
    return password


@job(sensitive=["pin", "card"])
def pays(pin, **options):
    return pin


def takes_pin(pin):
    return pin


def takes_pin_and_more(pin, **options):
    return pin


@pytest.fixture
def _registry() -> Iterator[None]:
    """Jobs declared by a test are gone after it."""
    before = dict(jobs_module.registered())
    yield
    jobs_module._registry.clear()
    jobs_module._registry.update(before)


def stored(function: JobFunction, *args: object, **kwargs: object) -> tuple[object, object, bool]:
    handle = function.submit(*args, **kwargs)
    join()
    assert handle.state == "succeeded"
    row = Job.objects.get(pk=handle.id)
    return row.args, row.kwargs, row.args_withheld


@pytest.mark.django_db(transaction=True)
def test_words_without_a_parameter_of_their_own_are_withheld_if_they_look_secret() -> None:
    args, kwargs, withheld = stored(anything, 1, password="hush", API_KEY_2="hush", size=3)
    assert (args, withheld) == ([1], True)
    assert kwargs == {"password": WITHHELD, "API_KEY_2": WITHHELD, "size": 3}
    assert "hush" not in str(Job.objects.values().get())


@pytest.mark.django_db(transaction=True)
def test_the_rest_of_the_arguments_is_withheld_if_its_name_looks_secret() -> None:
    assert stored(anything, 1, "hush", "hush") == ([1, WITHHELD, WITHHELD], {}, True)


@pytest.mark.django_db(transaction=True)
def test_a_job_that_says_so_has_nothing_withheld() -> None:
    assert stored(open_book, "known", token="known") == (["known"], {"token": "known"}, False)


@pytest.mark.django_db(transaction=True)
def test_a_list_of_names_withholds_these_and_no_others() -> None:
    assert stored(pays, "1234", card="5678", token="known") == (
        [WITHHELD],
        {"card": WITHHELD, "token": "known"},
        True,
    )


@pytest.mark.fast
@pytest.mark.usefixtures("_registry")
@pytest.mark.parametrize(
    "names",
    [lambda: (name for name in ["pin"]), lambda: iter(["pin"]), lambda: {"pin": True}, lambda: 5, lambda: ["pin", 5]],
    ids=["generator", "iterator", "dictionary", "number", "not only texts"],
)
def test_names_that_could_be_read_once_or_are_no_names_are_refused(names) -> None:
    """A generator would be empty by the first submit, and the secret stored."""
    with pytest.raises(ConfigurationError, match="sensitive"):
        job(sensitive=names())(takes_pin)


@pytest.mark.fast
@pytest.mark.usefixtures("_registry")
@pytest.mark.parametrize("names", [("pin",), ["pin"], {"pin"}, frozenset({"pin"})])
def test_any_collection_of_names_is_taken(names) -> None:
    assert job(sensitive=names)(takes_pin).spec.sensitive == ("pin",)


@pytest.mark.fast
@pytest.mark.usefixtures("_registry")
def test_a_misspelt_name_is_refused_when_it_is_written() -> None:
    with pytest.raises(ConfigurationError, match=r"nip, pni.*no argument"):
        job(sensitive=("pni", "nip", "pin"))(takes_pin)
    assert job(sensitive=("pin", "card"))(takes_pin_and_more).spec.sensitive == ("pin", "card")
