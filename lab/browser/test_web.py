# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The daemon's page in a real browser: a real daemon, modelled guests.

WEB_PICTURES names a folder for screenshots.
"""

import json
import os
import re
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, Page, Route, expect
from seen import LEAST_CONTRAST, contrast, watched

from demeter_lab.balloon.stage import TOKEN, Stage, stage

PICTURES = os.environ.get("WEB_PICTURES")
GUESTS = ["web-front.example", "database", "batch_7"]
POLICY = {"name": "guaranteed", "fmem_pool_bytes": 6 << 20, "interval_ms": 250}
READ = "h1, h2, h3, p, td, th, label, figcaption, summary, svg text"
HOSTILE = '<img src=x onerror="window.owned=1"><script>window.owned=1</script>'
READ_ONLY = ["vms", "vms/database", "vms/database/history", "vms/database/ledger"]
READ_ONLY += ["decisions", "policy", "openapi.json"]


@pytest.fixture(scope="module")
def daemon() -> Iterator[Stage]:
    with stage(GUESTS) as daemon:
        assert daemon.ask("PUT", "/v1/policy", POLICY)[0] == 200
        yield daemon


def opened(
    browser: Browser, daemon: Stage, where: str = "", scheme: str = "light", width: int = 1100
) -> tuple[Page, list[str]]:
    """Return the page, and a list of what goes wrong on it."""
    page, wrong = watched(browser, (daemon.page, "data:"), scheme, width)
    page.goto(daemon.page + where)
    return page, wrong


def shown(browser: Browser, daemon: Stage, **more: str | int) -> tuple[Page, list[str]]:
    """Return the same with all that the daemon says, and curves of some length."""
    page, wrong = opened(browser, daemon, f"#token={TOKEN}", **more)
    expect(page.locator("#now tbody tr")).to_have_count(2 * len(GUESTS))
    page.wait_for_function(
        """() => [...document.querySelectorAll("article:first-child .curve.size")]
            .some((curve) => (curve.getAttribute("d").match(/H/g) ?? []).length > 8)""",
        timeout=60_000,
    )
    return page, wrong


def test_figures_are_drawn_and_nothing_goes_wrong(browser: Browser, daemon: Stage) -> None:
    page, wrong = shown(browser, daemon)
    assert page.locator("article h3").all_inner_texts() == sorted(GUESTS)
    for article in page.locator("article").all():
        article.scroll_into_view_if_needed()
        for at, kinds in enumerate((["size", "wanted", "backing"], ["size", "backing"])):
            svg = article.locator("figure svg").nth(at)
            for kind in kinds:
                expect(svg.locator(f".curve.{kind}").first).to_be_attached()
            expect(svg.locator(".area").first).to_be_attached()
            box = svg.bounding_box()
            assert box and box["width"] > 200 and box["height"] > 100
        expect(article.locator(".curve.stalled").first).to_be_attached()
    # Sizes that a policy changes are no level line.
    page.wait_for_function(
        """() => [...document.querySelectorAll(".curve.size")].some((curve) =>
            new Set((curve.getAttribute("d").match(/V[\\d.]+/g) ?? [])).size > 1)""",
        timeout=60_000,
    )
    page.context.close()
    assert not wrong


def test_what_is_shown_is_what_the_daemon_says(browser: Browser, daemon: Stage) -> None:
    page, wrong = shown(browser, daemon)
    expect(page.locator("#policy")).to_have_text(
        "Policy guaranteed, 6 MiB of FMEM for all, a decision each 250 ms."
    )
    why = page.locator("#decisions tbody td:nth-child(5)")
    expect(why.first).to_contain_text("policy guaranteed")
    assert any("samples/s" in words for words in why.all_inner_texts())
    first = page.locator("article").first
    first.locator("summary").click()
    expect(first.locator("details td", has_text="driver").first).to_be_visible()
    expect(first.locator("details td", has_text="policy guaranteed").first).to_be_visible()
    status, _, body = daemon.ask("GET", "/v1/vms/batch_7")
    assert status == 200
    total = json.loads(body)["tiers"][1]["total_bytes"]
    cell = page.locator("#now tbody tr").nth(1).locator("td").nth(3)
    expect(cell).to_contain_text(f"of {total >> 20} MiB")
    # One of them waits for memory: see the stage.
    expect(
        page.locator("#now td:nth-child(7)", has_text=re.compile(r"^[1-9]\d?\.\d %$"))
    ).not_to_have_count(0)
    page.fill("#filter", "DATA")
    expect(page.locator("#now tbody tr")).to_have_count(2)
    expect(page.locator("article:visible")).to_have_count(1)
    page.context.close()
    assert not wrong


def test_a_figure_answers(browser: Browser, daemon: Stage) -> None:
    """A pointer over a curve shows figures of that time."""
    page, wrong = shown(browser, daemon)
    svg = page.locator("article:first-child svg").first
    box = svg.bounding_box()
    assert box
    page.mouse.move(box["x"] + box["width"] * 0.6, box["y"] + 60)
    words = page.locator("article:first-child figcaption").first
    expect(words).to_contain_text(re.compile(r"fmem, \d+ s ago: has [\d.]+ [KM]iB"))
    assert svg.locator(".pointer").count() == 1
    page.context.close()
    assert not wrong


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_can_be_read_in_light_and_dark_and_in_400_px(
    browser: Browser, daemon: Stage, scheme: str
) -> None:
    for width in (1100, 400):
        page, wrong = shown(browser, daemon, scheme=scheme, width=width)
        ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (ground == "rgb(255, 255, 255)") == (scheme == "light")
        assert contrast(page, READ) >= LEAST_CONTRAST
        # Wide tables scroll in themselves; the page does not.
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        if PICTURES:
            page.screenshot(path=f"{PICTURES}/web-{scheme}-{width}.png", full_page=True)
        page.context.close()
        assert not wrong


def test_the_token_is_asked_for_and_does_not_stay_in_the_address(
    browser: Browser, daemon: Stage
) -> None:
    page, wrong = opened(browser, daemon)
    expect(page.locator("#login")).to_be_visible()
    expect(page.locator("#board")).to_be_hidden()
    if PICTURES:
        page.screenshot(path=f"{PICTURES}/web-login.png")
    assert not wrong
    for token in ("wrong", "x" * len(TOKEN), "\u00fc\u20ac"):
        page.fill("#token", token)
        page.click("button")
        expect(page.locator("#refused")).to_have_text("This is not the token.")
        expect(page.locator("#board")).to_be_hidden()
        assert page.locator("tbody tr").count() == 0
    page.fill("#token", TOKEN)
    page.click("button")
    expect(page.locator("#board")).to_be_visible()
    # It stays for the tab, and for nobody else.
    page.reload()
    expect(page.locator("#board")).to_be_visible()
    assert page.context.cookies() == []
    assert page.evaluate("localStorage.length") == 0
    page.context.close()
    page, _ = opened(browser, daemon, f"#token={TOKEN}")
    expect(page.locator("#board")).to_be_visible()
    assert page.url == daemon.page
    page.context.close()


def test_words_of_others_are_no_markup(browser: Browser, daemon: Stage) -> None:
    """A reason for the ledger can be any text; names, if ever they could."""
    external = POLICY | {"name": "external"}
    assert daemon.ask("PUT", "/v1/policy", external)[0] == 200
    wish = {"size_bytes": 3 << 20, "why": HOSTILE}
    assert daemon.ask("PUT", "/v1/vms/database/tiers/fmem", wish)[0] == 200
    assert daemon.ask("PUT", "/v1/policy", POLICY)[0] == 200

    def rename(route: Route) -> None:
        answer = route.fetch()
        views = answer.json()
        if urlsplit(route.request.url).path == "/v1/vms":
            views[0] |= {"name": HOSTILE, "problem": HOSTILE, "stage": HOSTILE}
        else:
            views[-1] |= {"vm": HOSTILE, "tier": HOSTILE}
        route.fulfill(response=answer, json=views)

    page, _ = opened(browser, daemon)
    for path in ("**/v1/vms", "**/v1/decisions"):
        page.route(path, rename)
    page.fill("#token", TOKEN)
    page.click("button")
    expect(page.locator("#decisions td", has_text=HOSTILE).first).to_be_visible()
    expect(page.locator("#now td", has_text=HOSTILE).first).to_be_visible()
    expect(page.locator("article h3", has_text=HOSTILE)).to_be_visible()
    database = page.locator("article", has=page.locator("h3", has_text="database"))
    database.locator("summary").click()
    expect(database.locator("td", has_text=HOSTILE).first).to_be_visible()
    assert page.locator("img, body script").count() == 0
    assert page.evaluate("window.owned") is None
    # And if the page forgot: the browser was told to take no text for a program.
    refused = """() => { try { document.body.innerHTML = "<b>x</b>"; return false; }
                         catch (error) { return error instanceof TypeError; } }"""
    assert page.evaluate(refused)
    page.context.close()


def test_a_daemon_that_goes_away_is_told(browser: Browser) -> None:
    with stage(["only"]) as gone:
        page, _ = opened(browser, gone, f"#token={TOKEN}")
        expect(page.locator("#state")).to_contain_text("1 guest")
    expect(page.locator("#state")).to_have_text(
        "The daemon does not answer; asking again.", timeout=30_000
    )
    page.context.close()


@pytest.mark.parametrize("path", READ_ONLY)
def test_without_the_token_nothing_is_told(daemon: Stage, path: str) -> None:
    asked = f"/v1/{path}"
    for value in (None, "Bearer wrong", f"Basic {TOKEN}", f"Bearer {TOKEN}x", TOKEN):
        headers = {} if value is None else {"Authorization": value}
        status, answered, body = daemon.ask_page("GET", asked, headers)
        assert status == 401
        assert answered["www-authenticate"].startswith("Bearer")
        problem = json.loads(body)
        assert set(problem) == {"error", "next"}
        assert not any(name in body.decode() for name in GUESTS)
    status, _, body = daemon.ask_page("GET", asked, {"Authorization": f"Bearer {TOKEN}"})
    assert status == 200
    assert body == daemon.ask("GET", asked)[2] or path != "openapi.json"


def test_it_is_there_on_a_unix_socket() -> None:
    with stage(["only"], listen="@/web.sock") as other:
        path = other.directory / "web.sock"
        assert path.stat().st_mode & 0o777 == 0o600
        admitted = {"Authorization": f"Bearer {TOKEN}"}
        assert other.ask_socket(path, "GET", "/", None)[0] == 200
        assert other.ask_socket(path, "GET", "/v1/vms", None)[0] == 401
        status, _, body = other.ask_socket(path, "GET", "/v1/vms", None, admitted)
        assert status == 200 and json.loads(body)[0]["name"] == "only"


def test_the_page_changes_nothing_and_is_kept_by_nobody(daemon: Stage) -> None:
    admitted = {"Authorization": f"Bearer {TOKEN}"}
    for method, path in (
        ("PUT", "/v1/policy"),
        ("POST", "/v1/vms"),
        ("DELETE", "/v1/vms/database"),
        ("POST", "/v1/reload"),
        ("PUT", "/v1/vms/database/tiers/fmem"),
        ("POST", "/v1/vms/database/statistics"),
        ("GET", "/v1/watch"),
        ("GET", "/metrics"),
        ("GET", "/../token"),
    ):
        assert daemon.ask_page(method, path, admitted)[0] in (404, 405), path
    for path in ("/", "/page.js", "/chart.js", "/page.css", "/v1/vms", "/none"):
        _, headers, _ = daemon.ask_page("GET", path)
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy and "unsafe" not in policy
        assert headers["cache-control"] == "no-store"
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"
        assert "set-cookie" not in headers
        assert "access-control-allow-origin" not in headers
