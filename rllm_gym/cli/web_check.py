"""`rllm-gym web-check`: says which of WebArena's sites are set, and which of those do not answer."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated, Any, NamedTuple
from urllib.parse import urlsplit

import typer

from rllm_gym.cli.common import errors_in_one_line
from rllm_gym.errors import ConfigError, EnvError


class Finding(NamedTuple):
    """The state of one site."""

    is_good: bool
    text: str


def web_check(
    login: Annotated[bool, typer.Option("--login", help="Log in at the sites that have accounts, too.")] = False,
    timeout_s: Annotated[float, typer.Option("--timeout", min=0.1, help="Seconds to wait for a site.")] = 20.0,
) -> None:
    """Say which of WebArena's sites do not answer; fails if one that is set does not."""
    from rllm_gym.envs.webarena.tasks import SITES, site_urls

    with errors_in_one_line():
        urls = site_urls()
        if not urls:
            raise ConfigError(
                "web-check: a site must be set; got none, so WebArena-v0 uses its embedded sites. Set "
                f"{', '.join(f'WA_{site.upper()}' for site in SITES)}, or the same without WA_."
            )
        with ThreadPoolExecutor(len(urls)) as pool:
            found = dict(zip(urls, pool.map(lambda url: ask(url, timeout_s), urls.values()), strict=True))
        if login:
            found |= _log_in({site: url for site, url in urls.items() if found[site].is_good}, timeout_s)
    names = list(dict.fromkeys((*SITES, *urls)))
    for site in names:
        url = urls.get(site, "-")
        text = found[site].text if site in found else f"not set (WA_{site.upper()})"
        typer.echo(f"{site:<15} {url:<40} {text}")
    bad = [site for site in found if not found[site].is_good]
    if bad:
        typer.echo(f"web-check: {len(bad)} of {len(urls)} sites do not answer: {', '.join(bad)}", err=True)
        raise typer.Exit(1)


def ask(url: str, timeout_s: float) -> Finding:
    """Ask a site for its start page."""
    from rllm_gym.envs.webarena.tasks import need

    requests: Any = need("requests")
    start_s = time.monotonic()
    try:
        with requests.Session() as session:
            session.trust_env = False
            response = session.get(url, timeout=timeout_s)
    except requests.RequestException as e:
        return Finding(False, f"does not answer: {type(e).__name__}: {e}")
    took = f"{response.status_code} in {time.monotonic() - start_s:.2f} s"
    # A site that is set up for another address leads there, and its links would leave the task's sites.
    origin = _origin(response.url)
    if response.status_code >= 400:
        return Finding(False, f"does not answer as it should: {took}")
    if origin != _origin(url):
        return Finding(False, f"leads to another address, {origin}: {took}. Set the site's own base address.")
    return Finding(True, f"answers: {took}")


def _origin(url: str) -> str:
    """Return scheme, host and port, the port left out where it is the scheme's own."""
    parts = urlsplit(url)
    port = "" if parts.port in (None, {"http": 80, "https": 443}.get(parts.scheme)) else f":{parts.port}"
    return f"{parts.scheme}://{parts.hostname}{port}"


def _log_in(urls: dict[str, str], timeout_s: float) -> dict[str, Finding]:
    from rllm_gym.envs.webarena.login import ACCOUNTS, log_in

    found = {}
    for site, url in urls.items():
        if site not in ACCOUNTS:
            continue
        try:
            log_in(site, url, timeout_s=timeout_s)
            found[site] = Finding(True, f"answers, and lets {ACCOUNTS[site].name} in")
        except EnvError as e:
            found[site] = Finding(False, str(e))
    return found
