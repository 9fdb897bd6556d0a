"""A server of the viewer, and a page in a real browser that notes everything it complains about."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import ExitStack, contextmanager
from urllib.request import urlopen

import pytest
import uvicorn

from rllm_gym.viewer.episode_index import Index
from rllm_gym.viewer.hub import Hub
from rllm_gym.viewer.server import make_app
from tests.viewer.helpers import write_evaluation, write_run

# No smooth scrolling: a button that moves between the press and the release of the mouse is not clicked.
TYPICAL = {"viewport": {"width": 1280, "height": 800}, "reduced_motion": "reduce"}


@contextmanager
def serving(paths, **hub_options):
    """Yield the address of a server, with `index` and `hub`."""
    index, hub = Index(paths), Hub({"tiny": "tiny"}, **hub_options)
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(make_app(index, hub), log_level="warning", lifespan="on"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    address = Address(f"http://127.0.0.1:{listener.getsockname()[1]}/")
    address.index, address.hub = index, hub
    try:
        while not (server.started and index.is_complete):
            assert thread.is_alive()
            time.sleep(0.02)
        yield address
    finally:
        server.should_exit = True
        thread.join()
        listener.close()


class Address(str):
    index: Index
    hub: Hub

    def get(self, path):
        with urlopen(self + path) as response:
            return response.read()


@pytest.fixture(scope="session")
def runs(tmp_path_factory):
    """A run and two evaluations."""
    folder = tmp_path_factory.mktemp("viewer")
    write_run(folder / "quickstart")
    return [
        folder / "quickstart",
        write_evaluation(folder / "before", solved=(140,)),
        write_evaluation(folder / "after", solved=(140, 141, 142)),
    ]


@pytest.fixture(scope="session")
def address(runs):
    with serving(runs) as address:
        yield address


@pytest.fixture(scope="session")
def browser(needs_browser):
    from playwright.sync_api import sync_playwright

    from rllm_gym.envs.web.browser import CHROMIUM_ARGS, find_chromium

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=find_chromium(), args=list(CHROMIUM_ARGS))
        yield browser
        browser.close()


@pytest.fixture
def serve():
    """Start a server of some paths, which ends after the pages have been closed."""
    with ExitStack() as stack:
        yield lambda paths: stack.enter_context(serving(paths))


@pytest.fixture
def open_page(browser, serve):
    """Open a page; at the end nothing may have gone wrong in it, no policy have been violated, no other host asked."""
    contexts, complaints = [], []

    def open_page(address, *, allowed=(), **options):
        context = browser.new_context(**{**TYPICAL, **options})
        contexts.append(context)
        context.set_default_timeout(15_000)
        page = context.new_page()
        page.on("console", lambda m: complaints.append(m.text) if m.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("dialog", lambda dialog: (complaints.append(f"dialog {dialog.message}"), dialog.dismiss()))
        page.add_init_script(
            "document.addEventListener('securitypolicyviolation', e => console.error('CSP: ' + e.violatedDirective))"
        )
        host = address.split("#")[0].rpartition("/")[0]
        page.on("request", lambda r: complaints.append(f"asked {r.url}") if not r.url.startswith(host) else None)
        page.goto(address)
        page.allowed = allowed
        return page

    yield open_page
    for context in contexts:
        allowed = [text for page in context.pages for text in page.allowed]
        context.close()
        complaints[:] = [c for c in complaints if not any(text in c for text in allowed)]
    assert not complaints
