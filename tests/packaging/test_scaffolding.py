"""The test suite's own promises."""

import pytest
from django.conf import settings
from django.db import connection

from tests.conftest import unavailable


def test_missing_service_skips_on_a_users_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match="no such service"):
        unavailable("no such service")


def test_missing_service_fails_in_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="no such service"):
        unavailable("no such service")


@pytest.mark.django_db
def test_what_touches_the_database_is_marked_for_the_other_ones(request: pytest.FixtureRequest) -> None:
    assert request.node.get_closest_marker("database") is not None


@pytest.mark.django_db
def test_database_is_this_runs_own_and_never_in_memory() -> None:
    name = str(connection.settings_dict["NAME"])
    assert name.endswith(str(settings.DATABASES["default"]["TEST"]["NAME"])[-20:])
    assert "memory" not in name


def test_what_touches_no_database_is_not_marked(request: pytest.FixtureRequest) -> None:
    assert request.node.get_closest_marker("database") is None
