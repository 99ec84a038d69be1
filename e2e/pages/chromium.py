"""Headless Chromium over its DevTools protocol (https://chromedevtools.github.io/devtools-protocol/)."""

import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from websockets.sync.client import ClientConnection, connect

SECONDS = 60.0
_PROGRAMS = ("chromium", "chromium-browser", "google-chrome")


def program() -> str | None:
    """The browser's path; None if none is installed."""
    return next((path for name in _PROGRAMS if (path := shutil.which(name))), None)


class Tab:
    """One tab. events: what it reported, by method: requests, errors, dialogs."""

    def __init__(self, connection: ClientConnection) -> None:
        self._connection, self._session, self._count = connection, "", 0
        self.events: list[tuple[str, dict[str, Any]]] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def open(self, page: Path) -> None:
        self.call("Page.navigate", url=page.as_uri())
        self.until(f"location.href + document.readyState === {json.dumps(f'{page.as_uri()}complete')}")

    def until(self, condition: str) -> None:
        """Wait until a JavaScript expression is true. Raises TimeoutError."""
        deadline = time.monotonic() + SECONDS
        while self.value(condition) is not True:
            if time.monotonic() > deadline:
                raise TimeoutError(f"not after {SECONDS:g} s: {condition}")
            time.sleep(0.05)

    def value(self, expression: str) -> Any:
        """The JSON value of a JavaScript expression. Raises AssertionError if it throws."""
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._count += 1
        session = {"sessionId": self._session} if self._session else {}
        self._connection.send(json.dumps({"id": self._count, "method": method, "params": parameters, **session}))
        while (message := json.loads(self._connection.recv(SECONDS))).get("id") != self._count:
            self.events.append((message["method"], message["params"]))
        assert "error" not in message, (method, message)
        return dict(message["result"])


@contextmanager
def tab(browser: str, folder: Path) -> Iterator[Tab]:
    """A tab of a new browser, whose files are in the folder."""
    options = ["--headless", "--remote-debugging-port=0", f"--user-data-dir={folder}", "--disable-gpu"]
    options += ["--no-first-run", "--disable-background-networking"]
    options += ["--no-sandbox"] if os.geteuid() == 0 else []  # it has none for root
    with subprocess.Popen([browser, *options, "about:blank"], stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            found = (re.search(r"DevTools listening on (ws://\S+)", line) for line in process.stderr)
            address = next((each[1] for each in found if each), None)
            assert address is not None, f"{browser} ended with {process.wait()} and opened no port"
            with connect(address, max_size=None) as connection:
                yield Tab(connection)
        finally:
            process.terminate()
