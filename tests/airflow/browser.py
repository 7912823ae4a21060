"""Airflow's UI in a real browser, as a person uses it."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from axe_playwright_python.sync_playwright import Axe  # type: ignore[import-untyped]
from playwright.sync_api import Browser, Error, Locator, Page, ViewportSize, expect, sync_playwright

from airflow_tx.base.compat import is_airflow_3_2

PATIENCE = 200_000
NARROW = ViewportSize(width=380, height=760)
WIDE = ViewportSize(width=1280, height=800)
# What is seen of the board: Airflow's own parts of a page are not ours to correct.
_OURS = ["[data-testid=board]", "[role=dialog]"]
_OUR_SCRIPT = "main.umd.cjs"
# A dialog that fades in has other colours for a moment; what loads has no rows yet.
# What is still to come pulses without end, for as long as the ledger is away.
_AT_REST = """
ours => document.getAnimations().every(each =>
    each.playState !== "running" || each.effect.getComputedTiming().iterations === Infinity
    || !ours.some(part => each.effect.target?.closest(part)))
"""

expect.set_options(timeout=PATIENCE)


@contextmanager
def chromium() -> Iterator[Browser]:
    """A headless browser."""
    path = shutil.which("chromium") or shutil.which("google-chrome")
    assert path is not None, "there is no chromium: script/env servers installs it"
    # Its sandbox cannot be had by root.
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=arguments, timeout=PATIENCE)
        try:
            yield browser
        finally:
            browser.close()


class Site(Protocol):
    """An Airflow with a UI; `home` has the passwords of its users."""

    home: Path

    @property
    def address(self) -> str: ...


class Person:
    """Somebody who is logged in to Airflow's UI.

    :param token: of the user, who is logged in with it; else with the password, in the form.
    :ivar errors: what the pages threw, or wrote as an error.
    """

    def __init__(self, browser: Browser, airflow: Site, user: str, *, dark: bool = False, token: str = "") -> None:
        self.address = airflow.address
        scheme = {"color_scheme": "dark" if dark else "light"}
        context = browser.new_context(
            base_url=airflow.address,
            viewport=WIDE,
            reduced_motion="reduce",
            **scheme,  # type: ignore[arg-type]
        )
        context.set_default_timeout(PATIENCE)
        self.page: Page = context.new_page()
        self.errors: list[str] = []
        self.page.on("pageerror", self._thrown)
        if token:
            context.add_cookies([{"name": "_token", "value": token, "url": airflow.address}])
        else:
            self._log_in(airflow, user)

    def _thrown(self, error: Error) -> None:
        # Airflow 3.2 catches no error when somebody leaves its grid while it reads; 3.3 does.
        left = error.name == "AbortError" and _OUR_SCRIPT not in (error.stack or "")
        if not (left and is_airflow_3_2()):
            self.errors.append(str(error))

    def _log_in(self, airflow: Site, user: str) -> None:
        passwords: dict[str, str] = json.loads((airflow.home / "passwords.json").read_text())
        self.page.goto("/auth/login")
        self.page.locator("input").nth(0).fill(user)
        self.page.locator("input").nth(1).fill(passwords[user])
        self.page.keyboard.press("Enter")
        self.page.wait_for_url(lambda url: "login" not in url)

    @property
    def board(self) -> Locator:
        """What is ours of the page."""
        return self.page.get_by_test_id("board")

    def trigger(self, dag_id: str, **params: str) -> None:
        """Trigger a run with the button of its DAG.

        :param params: what is typed into the fields of the form.
        """
        self.page.goto(f"/dags/{dag_id}")
        self.page.get_by_test_id("trigger-dag-button").click()
        for name, value in params.items():
            self.page.locator(f"[name=element_{name}]").fill(value)
        with self.page.expect_response(
            lambda answer: answer.url.endswith("dagRuns") and answer.request.method == "POST"
        ):
            self.page.get_by_test_id("trigger-dag-submit").click()

    def open(self, **address: Any) -> None:
        """Open the board at a topology or a transaction."""
        asked = "&".join(f"{name}={value}" for name, value in address.items())
        self.page.goto(f"/plugin/transactions?{asked}")

    def press(self, button: str) -> Locator:
        """Press a button of the board, and wait until it says what would happen."""
        self.board.get_by_role("button", name=button, exact=True).click()
        dialog = self.page.get_by_role("dialog")
        expect(dialog.get_by_role("heading")).to_contain_text(f"{button}:")
        expect(dialog.get_by_role("status", name="Loading")).to_have_count(0)
        return dialog

    def row(self, txid: int) -> Locator:
        """A transaction of the timeline, which is a link that says what is drawn."""
        return self.board.get_by_role("link", name=re.compile(rf"^Transaction {txid}\b"))

    def bars(self, kind: str) -> dict[int, list[tuple[float, float]]]:
        """Where bars of a kind begin and end, in pixels, by transaction; all at one moment, for they move with time."""
        rows = self.board.get_by_role("link", name=re.compile(r"^Transaction \d+\b")).evaluate_all(
            """(rows, kind) => rows.map(row => [
                Number(row.ariaLabel.match(/\\d+/)[0]),
                [...row.querySelectorAll(`[data-kind=${kind}]`)]
                    .map(bar => [bar.x.baseVal.value, bar.x.baseVal.value + bar.width.baseVal.value])])""",
            kind,
        )
        return {txid: [(begin, end) for begin, end in bars] for txid, bars in rows}

    def findings(self) -> list[str]:
        """What axe finds on our part of the page once nothing moves there: each rule, and where."""
        self.page.wait_for_function(_AT_REST, arg=_OURS)
        shown = [selector for selector in _OURS if self.page.locator(selector).count()]
        found = Axe().run(self.page, context={"include": [[selector] for selector in shown]}).response["violations"]
        return [f"{each['id']}: {node['html'][:200]}" for each in found for node in each["nodes"]]

    def overflow(self) -> int:
        """By how many pixels our part is wider than the room it has."""
        widest: int = self.board.evaluate(
            """board => Math.max(0, ...[...board.querySelectorAll("button, a, label, h1, h2, p")]
                .filter(each => !each.closest("[role=region]"))
                .map(each => each.getBoundingClientRect().right - board.getBoundingClientRect().right))"""
        )
        return widest


People = Callable[[str], Person]
"""Gives users of the board, each with a page that stays."""
