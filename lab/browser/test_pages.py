# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The report's pages in a real browser: figures, links, light and dark, a narrow window.

EVALUATION_PAGES names the folder with ``index.html``; EVALUATION_PICTURES one for screenshots.
"""

import os
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page
from seen import LEAST_CONTRAST, contrast, watched

PAGES = Path(os.environ["EVALUATION_PAGES"]).resolve()
NAMES = sorted(path.name for path in PAGES.glob("*.html"))
PICTURES = os.environ.get("EVALUATION_PICTURES")
READ = "h1, p, td, main > p a, nav a, dd, figcaption, .marks text"


def opened(
    browser: Browser, name: str, scheme: str = "light", width: int = 1000
) -> tuple[Page, list[str]]:
    """Return the page with all figures drawn, and what went wrong."""
    # A page of the report asks for its own files and nothing else.
    page, wrong = watched(browser, ("file:", "data:", "blob:"), scheme, width)
    page.on("requestfailed", lambda ask: wrong.append(f"not there: {ask.url}"))
    page.goto((PAGES / name).as_uri())
    page.evaluate("document.drawn.then(() => null)")
    return page, wrong


def test_there_are_pages() -> None:
    assert "index.html" in NAMES
    assert any(name.startswith("manager-") for name in NAMES)
    assert any(name.startswith("workload-") for name in NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_figures_are_drawn_and_nothing_goes_wrong(browser: Browser, name: str) -> None:
    page, wrong = opened(browser, name)
    for figure in page.locator("figure").all():
        marks = figure.locator(".marks :is(.mark-rect, .mark-line, .mark-symbol) path")
        assert marks.count() > 0, f"an empty figure: {figure.locator('figcaption').inner_text()}"
        box = figure.locator("svg.marks").bounding_box()
        assert box and box["width"] > 100 and box["height"] > 40
    assert not wrong
    page.context.close()


@pytest.mark.parametrize("name", NAMES)
def test_links_hold(browser: Browser, name: str) -> None:
    page, _ = opened(browser, name)
    links = [link.get_attribute("href") for link in page.locator("a[href]").all()]
    links = [link for link in links if link and not link.startswith("#")]
    assert links
    assert [link for link in links if not (PAGES / link).is_file()] == []
    page.context.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", NAMES)
def test_it_can_be_read_in_light_and_dark_and_in_400_px(
    browser: Browser, name: str, scheme: str
) -> None:
    for width in (1000, 400):
        page, wrong = opened(browser, name, scheme, width)
        ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (ground == "rgb(255, 255, 255)") == (scheme == "light")
        assert contrast(page, READ) >= LEAST_CONTRAST
        # Wide tables scroll in themselves; the page does not.
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert not wrong
        if PICTURES:
            page.screenshot(path=f"{PICTURES}/{name}-{scheme}-{width}.png", full_page=True)
        page.context.close()


def test_a_figure_answers(browser: Browser) -> None:
    """A pointer over a mark shows its figures."""
    for name in NAMES:
        page, _ = opened(browser, name)
        bars = page.locator("figure svg .mark-rect path")
        if bars.count():
            bars.first.hover(force=True)
            page.wait_for_selector("#vg-tooltip-element.visible")
            assert page.locator("#vg-tooltip-element tr").count() >= 2
            page.context.close()
            return
        page.context.close()
    pytest.fail("no page has bars")
