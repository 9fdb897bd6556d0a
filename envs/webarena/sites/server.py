"""The server: one thread on 127.0.0.1 serves the sites of every episode of this process, each under its own key."""

from __future__ import annotations

import os
import secrets
import threading
import weakref
from collections.abc import Iterable
from typing import Any
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

from werkzeug.exceptions import NotFound
from werkzeug.http import parse_cookie
from werkzeug.serving import WSGIRequestHandler, make_server

from rllm_gym.envs.webarena.sites.app import DATABASE, create_app, login_cookie
from rllm_gym.envs.webarena.sites.database import Database, template
from rllm_gym.errors import WorldError

HOST = "127.0.0.1"
NAMES = ("shopping", "reddit", "gitlab", "shopping_admin")
# For a browser that has the server for a proxy. The names are reserved (RFC 6761): nothing on the internet answers there.
SHOWN_HOSTS = {
    "shopping": "shop.test",
    "reddit": "forum.test",
    "gitlab": "code.test",
    "shopping_admin": "admin.shop.test",
}
_NAMES_BY_HOST = {host: name for name, host in SHOWN_HOSTS.items()}
_KEY_COOKIE = "episode"


class Sites:
    """One environment's copy of the four sites.

    A reset makes a fresh copy with new addresses; nothing that was done to the old one is left. All copies of a process
    share a server thread, which the first one starts and the last `close()` ends.

    Use:
        sites = Sites()
        sites.reset()
        sites.urls["shopping"]  # "http://127.0.0.1:40123/pR3x.../shopping"
        browser.new_context(storage_state=sites.storage_state(["shopping"]))  # logged in there
        sites.check()  # raises WorldError if a page failed
        sites.close()

    Args:
        seed: of the data; the embedded tasks are about seed 0.
    """

    def __init__(self, seed: int = 0) -> None:
        self._seed = seed
        self._key = ""
        self._database: Database | None = None
        self._server: _Server | None = None
        self._finalizer: weakref.finalize | None = None

    @property
    def urls(self) -> dict[str, str]:
        """The address of each site, by WebArena's names; empty before the first reset."""
        if self._server is None:
            return {}
        return {name: f"{self._server.url}/{self._key}/{name}" for name in NAMES}

    @property
    def is_foreign(self) -> bool:
        """Whether these are a forked parent's sites, which this process must not touch."""
        return self._server is not None and self._server.pid != os.getpid()

    def reset(self) -> dict[str, str]:
        """Make a fresh copy of the sites and return their addresses."""
        self.close()
        self._server = _acquire()
        self._key = secrets.token_urlsafe(6)
        self._database = self._server.router.databases[self._key] = Database(template(self._seed))
        self._finalizer = weakref.finalize(self, _release, self._server, self._key)
        return self.urls

    @property
    def address(self) -> str:
        """The server as "host:port"; a browser that has it for a proxy finds the sites under `SHOWN_HOSTS`."""
        return "" if self._server is None else self._server.url.removeprefix("http://")

    def proxied_state(self, names: Iterable[str], logins: Iterable[str] = ()) -> dict[str, Any]:
        """Return the cookies, as Playwright's storage state, with which a browser behind the proxy sees this copy.

        Args:
            names: the sites that it may see.
            logins: those of them that it is logged in to.
        """
        if self._server is None:
            return {"cookies": [], "origins": []}
        apps = self._server.router.apps
        pairs = [(name, {"name": _KEY_COOKIE, "value": self._key}) for name in names]
        pairs += [(name, login_cookie(apps[name])) for name in logins if name in apps]
        common = {"path": "/", "expires": -1, "httpOnly": True, "secure": False, "sameSite": "Lax"}
        cookies = [{**cookie, "domain": SHOWN_HOSTS[name], **common} for name, cookie in pairs]
        return {"cookies": cookies, "origins": []}

    def storage_state(self, names: Iterable[str] = NAMES) -> dict[str, Any]:
        """Return the cookies of these sites' own users, logged in, in the form of Playwright's storage state."""
        if self._server is None:
            return {"cookies": [], "origins": []}
        apps = self._server.router.apps
        cookies = [
            {
                **login_cookie(apps[name]),
                "domain": HOST,
                "path": f"/{self._key}/{name}",
                "expires": -1,
                "httpOnly": True,
                "secure": False,
                "sameSite": "Lax",
            }
            for name in names
            if name in apps
        ]
        return {"cookies": cookies, "origins": []}

    def check(self) -> None:
        """Raise WorldError if a page of this copy failed, so that the episode is not judged."""
        if self._database is not None and self._database.error:
            raise WorldError(f"WebArena sites: a page failed; got {self._database.error}. Reset the environment.")

    def close(self) -> None:
        if self._finalizer is not None:
            self._finalizer()
        self._key, self._database, self._server, self._finalizer = "", None, None, None

    def __getstate__(self) -> dict[str, Any]:
        """A copy has no sites until its reset."""
        return {"_seed": self._seed, "_key": "", "_database": None, "_server": None, "_finalizer": None}


class _Router:
    """Answers with a site's application and an episode's database.

    The address names both (/<key>/<site>/<path>), or, for a browser that has the server for a proxy, the host names the
    site and a cookie the episode.
    """

    def __init__(self) -> None:
        self.databases: dict[str, Database] = {}
        self.apps = {name: create_app(name) for name in NAMES}

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Any:
        host = environ.get("HTTP_HOST", "").removesuffix(":80")
        if host in _NAMES_BY_HOST:
            key = parse_cookie(environ).get(_KEY_COOKIE, "")
            if key not in self.databases:
                return NotFound()(environ, start_response)
            return self.apps[_NAMES_BY_HOST[host]]({**environ, DATABASE: self.databases[key]}, start_response)
        _, key, name, path = (environ["PATH_INFO"].split("/", 3) + [""] * 3)[:4]
        database = self.databases.get(key)
        app: WSGIApplication | None = self.apps.get(name)
        if database is None or app is None:
            return NotFound()(environ, start_response)
        return app(
            {**environ, "SCRIPT_NAME": f"/{key}/{name}", "PATH_INFO": f"/{path}", DATABASE: database}, start_response
        )


class _Server:
    def __init__(self) -> None:
        self.pid = os.getpid()
        self.num_users = 0
        self.router = _Router()
        self._server = make_server(HOST, 0, self.router, threaded=True, request_handler=_QuietHandler)
        self.url = f"http://{HOST}:{self._server.server_port}"
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.05,), name="webarena-sites", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _QuietHandler(WSGIRequestHandler):
    def log(self, *args: Any) -> None:
        pass  # a line per request would bury what the training prints


_lock = threading.Lock()
_server: _Server | None = None


def _acquire() -> _Server:
    global _server
    with _lock:
        if _server is None or _server.pid != os.getpid():  # a fork inherits the object, not its thread
            _server = _Server()
        _server.num_users += 1
        return _server


def _release(server: _Server, key: str) -> None:
    global _server
    if server.pid != os.getpid():
        return
    with _lock:
        database = server.router.databases.pop(key, None)
        server.num_users -= 1
        is_last = server.num_users == 0
        if is_last and _server is server:
            _server = None
    if database is not None:
        database.close()
    if is_last:
        server.close()
