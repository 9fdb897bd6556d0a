"""Requests to a server: one connection that is kept, a bound on each, and errors that say whether anything was done."""

from __future__ import annotations

from typing import Any

from rllm_gym.envs.remote.env import NotOpenedError, need, warn_of_version
from rllm_gym.envs.remote.wire import VERSION_HEADER, package_version
from rllm_gym.errors import EnvError

NO_ROUTE = (404, 405, 501)  # what a server answers that does not know a request


class StatusError(EnvError):
    """A server refuses a request.

    Args:
        status: HTTP's.
    """

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class Http:
    """A server's HTTP side.

    Args:
        url: of the server.
        token: bearer token, or None.
        timeout_s: bounds each request.
    """

    def __init__(self, url: str, token: str | None, timeout_s: float) -> None:
        self._requests: Any = need("requests", "a server's client")
        self.url, self._timeout_s = url, timeout_s
        self._session = self._requests.Session()
        self._session.trust_env = False
        self._session.headers.update(headers(token))

    def get(self, path: str, **query: Any) -> Any:
        """Return the answer to a GET, as JSON."""
        return self._ask("GET", path, params=query)

    def post(self, path: str, body: dict[str, Any]) -> Any:
        """Return the answer to a POST, as JSON. It is sent once.

        Raises:
            NotOpenedError: it did not reach the server, or the server is full.
            EnvError: it may have been carried out.
        """
        return self._ask("POST", path, json=body)

    def close(self) -> None:
        self._session.close()

    def _ask(self, method: str, path: str, **content: Any) -> Any:
        where = f"{self.url}{path}"
        try:
            response = self._session.request(method, where, timeout=self._timeout_s, allow_redirects=False, **content)
        except self._requests.exceptions.ConnectTimeout as error:
            raise NotOpenedError(f"{where} does not answer") from error
        except self._requests.exceptions.ConnectionError as error:
            refused = "Connection refused" in str(error) or "NewConnectionError" in str(error)
            kind = NotOpenedError if refused or method == "GET" else EnvError
            raise kind(f"{where}: {'nobody listens' if refused else 'the connection was lost'}") from error
        except self._requests.RequestException as error:
            raise EnvError(f"{where}: got {type(error).__name__}, with timeout_s={self._timeout_s:g}") from error
        if VERSION_HEADER in response.headers:
            warn_of_version(self.url, response.headers[VERSION_HEADER])
        if response.status_code == 503:
            raise NotOpenedError(f"{where}: {_error_of(response)}")
        if response.status_code != 200:
            error_text = f"{where}: got status {response.status_code}: {_error_of(response)}"
            raise StatusError(error_text, response.status_code)
        try:
            answer = response.json()
        except ValueError as error:
            raise EnvError(f"{where}: the answer must be JSON; got {response.text[:80]!r}. Check url.") from error
        if isinstance(answer, dict) and "error" in answer:  # AgentGym's own servers say it with status 200
            raise EnvError(f"{where}: {str(answer['error'])[:300]}")
        return answer


def headers(token: str | None) -> dict[str, str]:
    """Return the headers of every request of ours."""
    version = {VERSION_HEADER: package_version()}
    return version if token is None else {**version, "Authorization": f"Bearer {token}"}


def _error_of(response: Any) -> str:
    try:
        answer = response.json()
        return str(answer.get("error") or answer.get("detail"))[:300]
    except (ValueError, AttributeError):
        return response.text[:80]
