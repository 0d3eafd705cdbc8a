# SPDX-License-Identifier: Apache-2.0 OR MIT
"""What one sees on a page: whether it can be read, and what goes wrong on it."""

from playwright.sync_api import Browser, Page

#: Contrast that text must have with what it stands on (WCAG AA).
LEAST_CONTRAST = 4.5
_CONTRAST = """(read) => {
  const channel = (c) => ((c /= 255) <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
  const light = (text) => {
    const [r, g, b] = text.match(/[\\d.]+/g).map(Number).map(channel);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const page = light(getComputedStyle(document.body).backgroundColor);
  const marks = [...document.querySelectorAll(read)].filter((mark) => mark.textContent);
  return Math.min(...marks.map((mark) => {
    const style = getComputedStyle(mark);
    const own = light(mark instanceof SVGElement ? style.fill : style.color);
    return (Math.max(own, page) + 0.05) / (Math.min(own, page) + 0.05);
  }));
}"""


def contrast(page: Page, read: str) -> float:
    """Return the least contrast of any text that the selector `read` finds."""
    return page.evaluate(_CONTRAST, read)


def watched(
    browser: Browser, own: tuple[str, ...], scheme: str, width: int
) -> tuple[Page, list[str]]:
    """Return an empty page, and a list of what will go wrong on it.

    Wrong is what the console is told, an exception, and a request for anything whose
    address does not begin with one of `own`.
    """
    context = browser.new_context(color_scheme=scheme, viewport={"width": width, "height": 900})
    page = context.new_page()
    wrong: list[str] = []
    page.on(
        "console",
        lambda line: wrong.append(line.text) if line.type in ("error", "warning") else None,
    )
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on(
        "request",
        lambda ask: None if ask.url.startswith(own) else wrong.append(ask.url),
    )
    return page, wrong
