"""The example in a real browser, served by gunicorn, with a pool small enough to be full at once."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from downstream.server import DownstreamServer
from linkchecker.demo.children import Child, free_port

PROJECT = Path(__file__).resolve().parents[2] / "example_project"
FINISHED = '#batch[data-finished="true"]'

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def site(chromium: str, downstream: DownstreamServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of the running example. `chromium` comes first: without it nothing needs to be started."""
    var = tmp_path_factory.mktemp("var")
    env = {
        **os.environ,
        "DJANGO_SETTINGS_MODULE": "linkdemo.settings",
        "DJANGO_SUPERUSER_PASSWORD": "demo",
        "DEMO_VAR": str(var),
        "DEMO_WORKERS": "2",
        "DEMO_QUEUE": "10",
        "DEMO_DRAIN_TIMEOUT": "4",
        "DEMO_ALLOWED_TARGET": downstream.url.removeprefix("http://"),
    }
    create_user = ["createsuperuser", "--noinput", "--username", "demo", "--email", "demo@example.com"]
    for command in (["migrate", "-v0"], create_user):
        subprocess.run([sys.executable, "manage.py", *command], cwd=PROJECT, env=env, check=True, capture_output=True)
    port = free_port(8300)
    server = Child(
        "gunicorn",
        [
            *(sys.executable, "-m", "gunicorn", "linkdemo.wsgi", "--bind", f"127.0.0.1:{port}"),
            *("--worker-class", "gthread", "--workers", "1", "--threads", "4", "--graceful-timeout", "10"),
        ],
        log=var / "gunicorn.log",
        cwd=PROJECT,
        env=env,
    )
    try:
        server.wait_until_it_answers(f"http://127.0.0.1:{port}/login/")
        yield f"http://127.0.0.1:{port}"
    finally:
        server.stop(15)


@pytest.fixture
def visit(browser: Any, site: str) -> Iterator[Callable[..., Any]]:
    """Opens a page of a signed-in user; at the end nothing may have been written to any page's console."""
    complaints: list[str] = []
    contexts = []

    def visit(**options: Any) -> Any:
        context = browser.new_context(**options)
        context.set_default_timeout(20_000)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.goto(f"{site}/links/")
        page.fill("#id_username", "demo")
        page.fill("#id_password", "demo")
        page.click("main button")
        page.wait_for_selector("#id_text")
        return page

    yield visit
    for context in contexts:
        context.close()
    assert complaints == []


def submit(page: Any, *urls: str) -> None:
    page.fill("#id_text", "\n".join(urls))
    page.click("text=Check them")
    page.wait_for_selector("#batch")


def fits(page: Any) -> bool:
    return bool(page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"))


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_batch_larger_than_the_pool_is_fed_to_its_end(
    visit: Callable[..., Any], downstream: DownstreamServer, width: int, scheme: str
) -> None:
    page = visit(viewport={"width": width, "height": 800}, color_scheme=scheme)
    assert fits(page)
    urls = [f"{downstream.url}/slow?ms=100&id={i}" for i in range(26)]
    submit(page, *urls, f"{downstream.url}/missing", f"{downstream.url}/{'long' * 100}", "javascript:alert(1)")
    explanation = page.wait_for_selector('[data-optional="explanation"]:visible').inner_text()
    assert "queue_full" in explanation
    assert page.inner_text('[data-text="phase"]') == "Pool full."
    assert fits(page)

    page.wait_for_selector(FINISHED)
    assert page.inner_text('[data-text="phase"]') == "Finished."
    assert page.inner_text('.legend li[data-status="ok"] b') == "26"
    assert page.get_attribute("[data-progress]", "value") == "29"
    assert page.locator('[data-optional="explanation"]').is_hidden()
    assert int(page.inner_text('[data-text="refusals"]')) >= 1
    assert page.locator("tbody tr").count() == 29
    assert page.locator("tbody a").count() == 28  # "javascript:" did not become a link
    assert fits(page)

    page.click("text=Problems")
    page.wait_for_selector(FINISHED)
    assert page.locator("tbody tr").count() == 3
    assert fits(page)


def test_cancelled_batch_stops_at_once(visit: Callable[..., Any], downstream: DownstreamServer) -> None:
    page = visit()
    submit(page, *(f"{downstream.url}/hang?id={i}" for i in range(20)))
    page.wait_for_selector('.legend li[data-status="running"]:visible')
    page.click("text=Cancel the batch")
    page.wait_for_selector(FINISHED)
    assert page.inner_text('[data-text="phase"]') == "Cancelled."
    assert page.inner_text('.legend li[data-status="cancelled"] b') == "20"
    assert page.locator("text=Check 20 without a result again").is_visible()


def test_batch_runs_to_its_end_without_javascript(visit: Callable[..., Any], downstream: DownstreamServer) -> None:
    page = visit(java_script_enabled=False)
    submit(page, *(f"{downstream.url}/fast?id={i}" for i in range(30)))
    page.wait_for_selector(FINISHED)
    assert page.inner_text('.legend li[data-status="ok"] b') == "30"


def test_sitemap_is_read_by_a_job(visit: Callable[..., Any], downstream: DownstreamServer) -> None:
    page = visit()
    page.fill("#id_sitemap", f"{downstream.url}/sitemap.xml?n=9")
    page.click("text=Check them")
    page.wait_for_selector(FINISHED)
    assert page.inner_text('.figures [data-text="total"]') == "9"
    assert page.inner_text('[data-text="done"]') == "9"
