"""Servers and how sessions are spread over them: each goes to the one with the fewest of this process."""

from __future__ import annotations

import collections
import os
import threading
from collections.abc import Sequence
from typing import Any

from rllm_gym.errors import ConfigError

_lock = threading.Lock()
_num_sessions: collections.Counter[str] = collections.Counter()


def check_urls(who: str, url: Any) -> tuple[str, ...]:
    """Return the servers' addresses, each without a slash at its end.

    Raises:
        ConfigError: there is none, or one that is not http(s).
    """
    urls = [url] if isinstance(url, str) else url
    if not isinstance(urls, Sequence) or not urls:
        raise ConfigError(f"{who}: url must be a server's address, or a list of some; got {url!r}. Set url.")
    for each in urls:
        if not isinstance(each, str) or not each.startswith(("http://", "https://")):
            raise ConfigError(f"{who}: a url must begin with http:// or https://; got {each!r}. Correct it.")
    return tuple(each.rstrip("/") for each in urls)


def least_used(urls: Sequence[str]) -> list[str]:
    """Return the servers, that with the fewest sessions of this process first; processes begin at different ones."""
    begin = os.getpid() % len(urls)
    with _lock:
        return sorted([*urls[begin:], *urls[:begin]], key=lambda url: _num_sessions[url])


def count(url: str, change: int) -> None:
    """Note that a session was opened (1) or closed (-1)."""
    with _lock:
        _num_sessions[url] += change


def _after_fork_in_child() -> None:
    global _lock
    _lock = threading.Lock()  # another thread of the parent may have held it
    _num_sessions.clear()


os.register_at_fork(after_in_child=_after_fork_in_child)
