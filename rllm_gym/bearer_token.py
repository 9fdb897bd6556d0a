"""Which servers get the user's token: an address may stand in a file that somebody else has written."""

from __future__ import annotations

import ipaddress
import os
from urllib.parse import urlsplit

TOKEN, HOSTS = "RLLM_GYM_TOKEN", "RLLM_GYM_TOKEN_HOSTS"


def token_for(*urls: str) -> str | None:
    """Return RLLM_GYM_TOKEN where every address is of this machine or of a host in RLLM_GYM_TOKEN_HOSTS (a,b)."""
    named = {name.strip().lower() for name in os.environ.get(HOSTS, "").split(",") if name.strip()}
    hosts = [urlsplit(url).hostname or "" for url in urls]
    return os.environ.get(TOKEN) if all(host in named or is_own_host(host) for host in hosts) else None


def is_own_host(name: str) -> bool:
    """Return whether a name or address is one that a machine has for itself."""
    try:
        return ipaddress.ip_address(name.strip("[]")).is_loopback
    except ValueError:
        return name.lower() == "localhost"
