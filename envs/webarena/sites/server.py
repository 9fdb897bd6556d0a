"""The server of one environment's sites: a thread on 127.0.0.1 that answers for all of them, as an HTTP proxy does."""

from __future__ import annotations

import functools
import os
import threading
import weakref
from collections.abc import Iterable
from typing import Any
from wsgiref.types import StartResponse, WSGIEnvironment

from flask import Flask
from werkzeug.exceptions import Forbidden
from werkzeug.serving import BaseWSGIServer, WSGIRequestHandler, make_server

from rllm_gym.envs.webarena.sites.app import DATABASE, create_app, login_cookie
from rllm_gym.envs.webarena.sites.database import Database
from rllm_gym.envs.webarena.sites.seed import seeded_image
from rllm_gym.errors import EnvError

# By WebArena's names. Nothing on the internet can answer at these addresses: RFC 6761 reserves .test.
SITE_URLS = {
    "shopping": "http://shop.test",
    "reddit": "http://forum.test",
    "gitlab": "http://code.test",
    "shopping_admin": "http://shop-admin.test",
    "map": "http://map.test",
}
_NAMES = {url.removeprefix("http://").removesuffix(".test"): name for name, url in SITE_URLS.items()}


class Sites:
    """One environment's copy of the sites, on a port of its own.

    A reset begins with the seeded data again; nothing that was done before is left. The addresses are `SITE_URLS` for
    whoever takes `server` as an HTTP proxy; without one, a site answers as http://shop.localhost:<port>, too.

    Use:
        sites = Sites()
        sites.reset()
        page = WebPage(list(SITE_URLS.values()), server=sites.server, storage_state=sites.storage_state(["shopping"]))
        page.goto(SITE_URLS["shopping"])
        sites.check()  # raises EnvError if a page failed
        sites.close()

    Args:
        seed: of the data; the embedded tasks are about seed 0.
    """

    def __init__(self, seed: int = 0) -> None:
        self._seed = seed
        self._server: _Server | None = None
        self._finalizer: weakref.finalize | None = None

    @property
    def server(self) -> str:
        """Where the sites answer, like "127.0.0.1:40123"; "" before the first reset."""
        return "" if self._server is None else self._server.address

    def reset(self, names: Iterable[str] = tuple(SITE_URLS)) -> None:
        """Begin with a fresh copy, and with a server where there is none yet in this process.

        Args:
            names: the sites that answer; the others refuse.
        """
        if self._server is None or self._server.pid != os.getpid():  # a fork inherits the object, not its thread
            self.close()
            self._server = _Server()
            self._finalizer = weakref.finalize(self, self._server.close)
        self._server.names = frozenset(names)
        self._server.database = Database(seeded_image(self._seed))

    def storage_state(self, names: Iterable[str] = tuple(SITE_URLS)) -> dict[str, Any]:
        """Return the cookies of these sites' own users, logged in, in the form of Playwright's storage state."""
        cookies = [
            {
                **login_cookie(app(name)),
                "domain": SITE_URLS[name].removeprefix("http://"),
                "path": "/",
                "expires": -1,
                "httpOnly": True,
                "secure": False,
                "sameSite": "Lax",
            }
            for name in names
        ]
        return {"cookies": cookies, "origins": []}

    def check(self) -> None:
        """Raise EnvError if a page failed, so that the episode is not evaluated."""
        if self._server is not None and self._server.database.error:
            raise EnvError(f"WebArena sites: a page failed; got {self._server.database.error}. Reset the environment.")

    def close(self) -> None:
        """End the server; safe to call twice."""
        if self._finalizer is not None:
            self._finalizer()
        self._server, self._finalizer = None, None

    def __getstate__(self) -> dict[str, Any]:
        """A copy has no server until its reset."""
        return {**self.__dict__, "_server": None, "_finalizer": None}


@functools.cache
def app(name: str) -> Flask:
    """Return a site's application, which all environments share."""
    return create_app(name)


class _Server:
    def __init__(self) -> None:
        self.pid = os.getpid()
        self.names = frozenset(SITE_URLS)
        self.database = Database()
        self._server: BaseWSGIServer = make_server(
            "127.0.0.1", 0, self._answer, threaded=True, request_handler=_QuietHandler
        )
        self.address = f"127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.2,), name="webarena-sites", daemon=True
        )
        self._thread.start()

    def _answer(self, environ: WSGIEnvironment, start_response: StartResponse) -> Any:
        host = environ.get("HTTP_HOST", "").partition(":")[0]
        label, _, domain = host.rpartition(".")
        if _NAMES.get(label) not in self.names or domain not in ("test", "localhost"):
            return Forbidden("This host is none of the sites.")(environ, start_response)
        return app(_NAMES[label])({**environ, DATABASE: self.database}, start_response)

    def close(self) -> None:
        if self.pid == os.getpid():
            self._server.shutdown()
            self._thread.join()
        self._server.server_close()


class _QuietHandler(WSGIRequestHandler):
    disable_nagle_algorithm = True  # else the body waits 40 ms for the receipt of the headers

    def log(self, *args: Any) -> None:
        pass  # a line per request would bury what the training prints
