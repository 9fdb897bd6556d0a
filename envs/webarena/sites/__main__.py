"""Serves the sites for people: `python -m rllm_gym.envs.webarena.sites`."""

from __future__ import annotations

import threading

from rllm_gym.envs.webarena.sites.seed.common import PASSWORD
from rllm_gym.envs.webarena.sites.server import SITE_URLS, Sites, app


def main() -> None:
    sites = Sites()
    sites.reset()
    port = sites.server.rpartition(":")[2]
    for name, url in SITE_URLS.items():
        user = app(name).config["SITE"].user
        print(f"{name}: {url.removesuffix('.test')}.localhost:{port} (log in as {user}, password {PASSWORD})")
    print("Ctrl-C ends it.", flush=True)
    try:
        threading.Event().wait()
    except KeyboardInterrupt:
        sites.close()


if __name__ == "__main__":
    main()
