"""A browser for the tests of the page: Debian's Chromium, by its path."""

import os
import shutil

import pytest

NAMES = ("chromium", "chromium-browser", "chromium-headless-shell", "google-chrome")


def chromium():
    """Return the path of a browser, none if the machine has none."""
    return os.environ.get("COSTMODEL_CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)


# Of a module, not of the session: while it is open, playwright's event loop runs in the thread of the tests, and
# whatever comes after these tests could not run a loop of its own.
@pytest.fixture(scope="module")
def browser():
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    path = chromium()
    if path is None:
        pytest.skip(f"no browser: none of {', '.join(NAMES)} is installed (apt-get install chromium)")
    with playwright.sync_playwright() as engine:
        running = engine.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield running
        running.close()
