"""The admin's pages in a browser, on a wide and a narrow screen, light and dark."""

from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.utils import timezone

from django_boundedpool.models import Job
from tests.rows import process, row_of_each_state

pytestmark = pytest.mark.browser

CONTRAST = """
() => [...document.querySelectorAll('.bp-badge, .bp-note, .bp-data, .bp-cancel button')].map(element => {
  const rgb = text => (text.match(/[\\d.]+/g) || []).map(Number);
  const light = ([r, g, b]) => [r, g, b].map(v => v / 255)
    .map(v => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  let behind = element;
  while (behind && (rgb(getComputedStyle(behind).backgroundColor)[3] ?? 1) === 0) behind = behind.parentElement;
  const ground = behind ? rgb(getComputedStyle(behind).backgroundColor) : [255, 255, 255];
  const [low, high] = [light(rgb(getComputedStyle(element).color)), light(ground)].sort((a, b) => a - b);
  return [element.className || element.tagName, (high + 0.05) / (low + 0.05)];
})
"""


def is_ours(message: Any) -> bool:
    return message.type == "error" and not message.location["url"].endswith("/favicon.ico")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_pages_fit_the_screen_and_can_be_read(
    live_server: Any, browser: Any, transactional_db: None, scheme: str, width: int
) -> None:
    get_user_model().objects.create_superuser("root", password="root")
    rows = row_of_each_state()
    process(stopped_at=timezone.now())
    context = browser.new_context(color_scheme=scheme, viewport={"width": width, "height": 900})
    page = context.new_page()
    complaints: list[str] = []
    page.on("console", lambda message: complaints.append(message.text) if is_ours(message) else None)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.goto(f"{live_server.url}/admin/login/")
    page.fill("#id_username", "root")
    page.fill("#id_password", "root")
    page.click("[type=submit]")
    jobs = f"{live_server.url}/admin/boundedpool/job/"
    for address in (
        jobs,
        *(f"{jobs}{rows[name].pk}/change/" for name in ("failed", "running", "succeeded", "unknown")),
        f"{live_server.url}/admin/boundedpool/process/",
    ):
        page.goto(address)
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), address
        if address == jobs and width == 1280:
            assert page.evaluate("document.querySelector('#result_list').offsetWidth <= 640"), "a column is cut off"
        found = page.evaluate(CONTRAST)
        assert found
        assert [(name, ratio) for name, ratio in found if ratio < 4.5] == [], address
    assert complaints == []
    context.close()


def test_the_button_cancels_by_keyboard(live_server: Any, page: Any, transactional_db: None, settings: Any) -> None:
    settings.BOUNDED_POOL_OPTIONS = {"INLINE": True}
    get_user_model().objects.create_superuser("root", password="root")
    job = row_of_each_state()["running"]
    page.goto(f"{live_server.url}/admin/login/?next=/admin/boundedpool/job/{job.pk}/change/")
    page.fill("#id_username", "root")
    page.fill("#id_password", "root")
    page.press("#id_password", "Enter")
    page.wait_for_selector(".bp-cancel button")
    page.focus(".bp-cancel button")
    page.keyboard.press("Enter")
    page.wait_for_selector(".messagelist")
    assert "1 asked to stop" in page.inner_text(".messagelist")
    assert Job.objects.get(pk=job.pk).cancel_reason == "operator"
