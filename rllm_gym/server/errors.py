"""The server's errors, each with its HTTP status; their messages name no file of the server."""

from __future__ import annotations

from rllm_gym.errors import RllmGymError


class ServeError(RllmGymError):
    """A request that is not carried out. `status` is its HTTP status; on a WebSocket the message alone is sent."""

    status = 400


class UnknownError(ServeError):
    """There is no such session, environment, split or item."""

    status = 404


class NotResetError(ServeError):
    """A step before the first reset, or after an environment has failed."""

    status = 409


class FullError(ServeError):
    """No session is free, or the server is ending; a client may try again after `retry_after_s`."""

    status = 503
    retry_after_s = 5


class EnvFailedError(ServeError):
    """The environment raised; the server's log says what."""

    status = 500


class TimedOutError(ServeError):
    """A call took too long and its worker was killed, or the worker died under it."""

    status = 504
