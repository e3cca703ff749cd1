"""A real Chromium for tests, driven by Playwright: where it is found, how it is started, and what no page may ever do.

`python -m tests.support.chromium` says which one is used, or what to do where there is none.

The law of this file: whoever looks at a page is told afterwards of every error on its console, every script that
failed, everything that its policy refused, and every dialog. A test names what it expects of them; all else fails it.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.support.visitor import Visitor

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Dialog, Page, WebError

    from tests.support.server import ServerProcess

VARIABLE = "HOLDFAST_TEST_CHROMIUM"
"""Names a Chromium, where none of these is on the path."""
PROGRAMS = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")
MISSING = f"there is no Chromium here: run `make browser`, or install one and name it in {VARIABLE}"
WAIT_MS = 30_000
"""For whatever a test expects to see; a machine may be busy."""
WIDE, PHONE = {"width": 1280, "height": 800}, {"width": 360, "height": 740}

# What the policy of a page refused is an event; here it becomes an error on the console, with all others.
_TELL_REFUSALS = """
addEventListener("securitypolicyviolation", (event) => {
  const { effectiveDirective, blockedURI, sample, sourceFile } = event;
  console.error(`policy: ${effectiveDirective} refused ${blockedURI} ${sample} in ${sourceFile}`);
});
"""


def find() -> str | None:
    """Return the program, if there is one."""
    named = os.environ.get(VARIABLE)
    if named:
        return shutil.which(named)
    return next((found for program in PROGRAMS if (found := shutil.which(program))), None)


@contextlib.contextmanager
def chromium(*arguments: str) -> Iterator[Browser]:
    """Start it, without a window. It is gone at the end."""
    from playwright.sync_api import expect, sync_playwright

    program = find()
    if program is None:
        raise FileNotFoundError(MISSING)
    expect.set_options(timeout=WAIT_MS)
    with sync_playwright() as playwright:
        # A small /dev/shm, as containers have it, must not end a tab.
        browser = playwright.chromium.launch(executable_path=program, args=["--disable-dev-shm-usage", *arguments])
        try:
            yield browser
        finally:
            browser.close()


class Readers:
    """Those who read the pages of one server, each with a browser's memory of its own; and all that went wrong."""

    def __init__(self, browser: Browser, server: ServerProcess) -> None:
        self._browser = browser
        self._server = server
        self._contexts: list[BrowserContext] = []
        self._expected: list[re.Pattern[str]] = []
        self.troubles: list[str] = []

    def new(self, token: str | None = None, **options: Any) -> BrowserContext:  # noqa: ANN401 - of `new_context`
        """Somebody new; signed in, if there is a token. `options` are those of a Playwright context."""
        options = {"viewport": WIDE, "base_url": self._server.url, "locale": "en-GB", "timezone_id": "UTC", **options}
        context = self._browser.new_context(**options)
        context.set_default_timeout(WAIT_MS)
        if options.get("java_script_enabled", True):
            context.add_init_script(_TELL_REFUSALS)
        context.on("console", self._said)
        context.on("weberror", self._failed)
        context.on("dialog", self._asked)
        self._contexts.append(context)
        if token is not None:
            self.sign_in(context, token)
        return context

    def open(self, token: str | None, path: str = "/", **options: Any) -> Page:  # noqa: ANN401 - as above
        """Somebody new, who looks at a page."""
        page = self.new(token, **options).new_page()
        page.goto(path)
        return page

    def sign_in(self, context: BrowserContext, token: str) -> None:
        """Give it the cookie that the sign-in page would give it."""
        visitor = Visitor(self._server)
        visitor.sign_in(token)
        context.add_cookies(
            [
                {"name": name, "value": value, "url": self._server.url, "httpOnly": True, "sameSite": "Strict"}
                for name, value in visitor.cookies.items()
            ]
        )

    def expect_trouble(self, *patterns: str) -> None:
        """Name what will be on a console in this test, and is no fault."""
        self._expected += [re.compile(pattern) for pattern in patterns]

    def close(self) -> list[str]:
        """Let them all go; return what went wrong and nobody expected."""
        for context in self._contexts:
            context.close()
        self._contexts.clear()
        return [text for text in self.troubles if not any(pattern.search(text) for pattern in self._expected)]

    def _said(self, message: ConsoleMessage) -> None:
        if message.type in {"error", "warning"}:
            self.troubles.append(f"console {message.type}: {message.text} ({message.location.get('url', '')})")

    def _failed(self, error: WebError) -> None:
        self.troubles.append(f"script failed: {error.error}")

    def _asked(self, dialog: Dialog) -> None:
        self.troubles.append(f"dialog: {dialog.message}")
        dialog.dismiss()


if __name__ == "__main__":
    where = find()
    if where is None:
        sys.exit(f"NOT READY: {MISSING}.")
    print(f"The tests of the operators' page use {Path(where)}: make test ARGS=tests/browser")
