"""Logging in to WebArena's sites, with the accounts that the benchmark has published."""

from __future__ import annotations

import functools
import os
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from rllm_gym.errors import EnvError

SESSION_S = 600.0  # how long a log-in is shared by new episodes; the sites' own sessions last longer
TIMEOUT_S = 30.0
_FORM = "form:has(input[type=password]:visible)"
_NAME = "input:is([type=text], [type=email], :not([type])):visible"


class Account(NamedTuple):
    """A user of a site, and the path of the form to log in with."""

    name: str
    password: str
    path: str


# WebArena, browser_env/env_config.py and auto_login.py.
ACCOUNTS = {
    "gitlab": Account("byteblaze", "hello1234", "/users/sign_in"),
    "reddit": Account("MarvelsGrantMan136", "test1234", "/login"),
    "shopping": Account("emma.lopez@gmail.com", "Password.123", "/customer/account/login/"),
    "shopping_admin": Account("admin", "admin1234", ""),
}


def storage_state(sites: Sequence[str], urls: Mapping[str, str]) -> dict[str, Any]:
    """Return the cookies and local storage of the sites' users, logged in, as Playwright saves them.

    Cookies know no ports: of two sites under one host name, as in a set-up on one machine, the cookies of the same name
    of the site that is named later win, as they do in WebArena.

    Args:
        urls: addresses by site.

    Raises:
        EnvError: a site cannot be reached, or refuses.
    """
    cookies: dict[tuple[str, str, str], Any] = {}
    origins = []
    for site in sites:
        state = _session(site, urls[site], os.getpid()).state()
        cookies |= {(cookie["name"], cookie["domain"], cookie["path"]): cookie for cookie in state["cookies"]}
        origins += state["origins"]
    return {"cookies": list(cookies.values()), "origins": origins}


class _Session:
    """The log-in at one site, which the episodes of this process share."""

    def __init__(self, site: str, url: str) -> None:
        self._site, self._url = site, url
        self._lock = threading.Lock()
        self._state: dict[str, Any] | None = None
        self._since_s = 0.0

    def state(self) -> dict[str, Any]:
        with self._lock:  # others wait, and then have it
            if self._state is None or time.monotonic() - self._since_s > SESSION_S:
                self._state = log_in(self._site, self._url)
                self._since_s = time.monotonic()
            return self._state


@functools.cache
def _session(site: str, url: str, pid: int) -> _Session:
    return _Session(site, url)


def log_in(site: str, url: str, *, timeout_s: float = TIMEOUT_S) -> dict[str, Any]:
    """Log in at a site through its form and return the browser's storage state.

    Raises:
        EnvError: the site cannot be reached, has no such form, or refuses.
    """
    from rllm_gym.envs.web.browser import Browser  # loads Playwright

    browser = Browser.shared()
    try:
        state: dict[str, Any] = browser.run(_log_in(browser, site, url, timeout_s))
        return state
    finally:
        browser.release()


async def _log_in(browser: Any, site: str, url: str, timeout_s: float) -> dict[str, Any]:
    from rllm_gym.envs.web.browser import PlaywrightError

    account = ACCOUNTS[site]
    context = await browser.open_context([url])
    try:
        page = await context.new_page()
        page.set_default_timeout(timeout_s * 1000)
        await page.goto(url + account.path)
        form = page.locator(_FORM).first
        await form.locator(_NAME).first.fill(account.name)
        await form.locator("input[type=password]").first.fill(account.password)
        async with page.expect_navigation():
            await form.locator("input[type=password]").first.press("Enter")
        if await page.locator(_FORM).count():
            raise EnvError(
                f"WebArenaEnv: {site} at {url} must let {account.name} in; got the form again. Reset the site."
            )
        state: dict[str, Any] = await context.storage_state()
        return state
    except PlaywrightError as e:
        reason = str(e).partition("\n")[0].rstrip(".")
        raise EnvError(f"WebArenaEnv: {site} at {url} must let {account.name} in; got {reason}. Check the site.") from e
    finally:
        await context.close()
