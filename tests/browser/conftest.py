from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from longboat.runtime import bundle
from tests.serve import making
from tests.serve.serving import serving

NAMES = ("chromium", "chromium-browser", "google-chrome")
QUIET = (
    "--no-sandbox",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-default-apps",
    "--disable-sync",
    "--no-first-run",
)
PATIENCE = 60_000
"""Milliseconds after which what a page must come to show is said not to come. `expect` has its own: 5 seconds."""
expect.set_options(timeout=PATIENCE)

HOSTILE = "</script><script>window.hacked = 1</script><img src=x onerror='window.hacked = 2'>"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """A real Chromium with a profile of its own. Without one the tests fail: a page that nobody opens is not tested.

    Of a module, not of the session: while Playwright is there its event loop is running, and other tests start theirs.
    """
    found = os.environ.get("LONGBOAT_CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        pytest.fail("no Chromium here: `make browser` installs one, or name one with LONGBOAT_CHROMIUM", pytrace=False)
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=found, args=list(QUIET))
        yield chromium
        chromium.close()


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One model for each kind of page; the text of one tries to break out of its page."""
    root = tmp_path_factory.mktemp("models")
    making.digits(root / "digits")
    making.words(root / "words")
    making.table(root / "table")
    making.logarithm(root / "logarithm")
    hostile = [bundle.Example({"x": [1.0, 2.0]}, HOSTILE, HOSTILE)]
    bundle.save(
        root / "hostile",
        str(root / "logarithm" / "1" / "function.onnx"),
        kind="table",
        title=HOSTILE,
        labels=(HOSTILE, "b"),
        examples=hostile,
    )
    return root


@pytest.fixture(scope="session")
def site(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a server of all of them."""
    with serving(tmp_path_factory.mktemp("server"), models, "--no-grpc") as running:
        yield f"http://127.0.0.1:{running.port}"


class Watched:
    """What a page asked for and complained of."""

    def __init__(self, page: Page) -> None:
        self.asked: list[str] = []
        self.complaints: list[str] = []
        page.on("request", lambda request: self.asked.append(request.url))
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("console", lambda message: self.complaints.append(message.text) if message.type == "error" else None)


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    context = browser.new_context(viewport={"width": 1000, "height": 800}, has_touch=True)
    context.set_default_timeout(PATIENCE)
    yield context.new_page()
    context.close()


@pytest.fixture
def watched(page: Page) -> Watched:
    return Watched(page)
