"""Which servers get the user's token: an address may stand in a file that somebody else has written."""

from __future__ import annotations

import ipaddress
import os
from urllib.parse import urlsplit

TOKEN, HOSTS = "RLLM_GYM_TOKEN", "RLLM_GYM_TOKEN_HOSTS"


def token_for(*urls: str) -> str | None:
    """Return RLLM_GYM_TOKEN where every address is of this machine or of a host in RLLM_GYM_TOKEN_HOSTS (a,b)."""
    named = {name.strip().lower() for name in os.environ.get(HOSTS, "").split(",") if name.strip()}
    return os.environ.get(TOKEN) if all(_is_trusted(urlsplit(url).hostname or "", named) for url in urls) else None


def _is_trusted(host: str, named: set[str]) -> bool:
    try:
        return host in named or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
