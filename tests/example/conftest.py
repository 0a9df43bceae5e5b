"""The example's own modules are importable through pytest's `pythonpath`; see pyproject.toml."""

import threading
from collections.abc import Iterator

import pytest
from downstream.server import DownstreamServer
from linkchecker.targets import Policy


@pytest.fixture(scope="session")
def downstream() -> Iterator[DownstreamServer]:
    """The example's downstream server, in a thread."""
    server = DownstreamServer()
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    yield server
    server.stop()
    thread.join()
    server.server_close()


@pytest.fixture
def policy(downstream: DownstreamServer) -> Policy:
    """The rules, with the downstream server as the only exempt address."""
    return Policy(exempt=frozenset({("127.0.0.1", downstream.server_address[1])}))
