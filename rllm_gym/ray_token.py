"""The token that a Ray of our own asks of whoever joins it: without one, whoever reaches its ports runs code in it.

Ray listens on all of a machine's addresses. Left to itself it keeps one token for good in a file that others may read.
"""

from __future__ import annotations

import os
import secrets
import sys
from pathlib import Path

MODE, TOKEN, TOKEN_PATH = "RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"

_token = ""  # of this process: Ray keeps the first one that it has read
_is_decided = False


def ask_for_token() -> None:
    """Let the Ray that this process starts ask for a token that nobody else has, whatever the shell has set."""
    global _token, _is_decided
    _token, _is_decided = _token or secrets.token_hex(32), True
    os.environ.pop(TOKEN_PATH, None)
    os.environ.update({MODE: "token", TOKEN: _token})
    if "ray" in sys.modules:  # it has read the mode; without one it asks for a token, and reads anew
        del os.environ[MODE]


def leave_to_cluster() -> None:
    """Leave everything as the cluster that this process joins wants it."""
    global _is_decided
    _is_decided = True


def ask_for_token_by_default() -> None:
    """Let a Ray that a user's own script starts ask for a token, unless the user has decided; call before `import ray`.

    The user has where the environment says something of a cluster or a token, or Ray has a token file.
    """
    is_decided = _is_decided or any(name in os.environ for name in (MODE, TOKEN, TOKEN_PATH, "RAY_ADDRESS"))
    has_started = "ray" in sys.modules and sys.modules["ray"].is_initialized()
    if not (is_decided or has_started or (Path.home() / ".ray" / "auth_token").exists()):
        ask_for_token()


def hide_token() -> None:
    """Keep the token from the processes that environments start; Ray has read it by then."""
    os.environ.pop(TOKEN, None)
