"""The functions that WebArena's configs call by name: the newest order, the newest review, a post's address, a role."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlparse

from rllm_gym.envs.webarena.evaluators import EvaluatedPage
from rllm_gym.envs.webarena.login import ACCOUNTS
from rllm_gym.envs.webarena.tasks import need
from rllm_gym.errors import EnvError

TIMEOUT_S = 30.0


def functions(urls: Mapping[str, str]) -> dict[str, Callable[..., str]]:
    """Return the functions by the names that the configs use.

    Source: WebArena, evaluation_harness/helper_functions.py. "memeber" is WebArena's spelling.

    Args:
        urls: addresses by site.
    """
    shop = urls.get("shopping", "")
    return {
        "shopping_get_latest_order_url": functools.partial(latest_order_url, shop),
        "shopping_get_sku_latest_review_author": functools.partial(latest_review_author, shop),
        "shopping_get_sku_latest_review_rating": functools.partial(latest_review_rating, shop),
        "reddit_get_post_url": post_url,
        "gitlab_get_project_memeber_role": member_role,
    }


def latest_order_url(shop: str) -> str:
    """Return the page of the newest order, whosever it is."""
    query = {
        "searchCriteria[sortOrders][0][field]": "created_at",
        "searchCriteria[sortOrders][0][direction]": "DESC",
        "searchCriteria[pageSize]": "1",
    }
    orders = _ask_shop(shop, "orders", query)["items"]
    return f"{shop}/sales/order/view/order_id/{int(orders[0]['increment_id'])}/" if orders else shop


def latest_review_author(shop: str, sku: str) -> str:
    """Return the nickname on a product's newest review, or "" where there is none."""
    reviews = _ask_shop(shop, f"products/{sku}/reviews")
    return str(reviews[-1]["nickname"]) if reviews else ""


def latest_review_rating(shop: str, sku: str) -> str:
    """Return the rating of a product's newest review in percent, or "" where there is none."""
    reviews = _ask_shop(shop, f"products/{sku}/reviews")
    return str(reviews[-1]["ratings"][0]["percent"]) if reviews else ""


def post_url(url: str) -> str:
    """Return the address of the post (`/f/<forum>/<number>/`) that a page of the forum belongs to, or `url` itself."""
    parsed = urlparse(url)
    parts = parsed.path.split("/")
    if len(parts) < 4 or parts[1] != "f":
        return url
    return f"{parsed.scheme}://{parsed.netloc}/f/{parts[2]}/{parts[3]}/"


def member_role(page: EvaluatedPage, account: str) -> str:
    """Return the role of an account on a project's page of members, or "" where it is not listed."""
    row = f"""[...document.querySelectorAll("td[data-label='Account'] span.gl-avatar-labeled-sublabel")]
        .findIndex((name) => name.outerText === {json.dumps("@" + account)})"""
    role = page.evaluate(f"document.querySelectorAll('td.col-max-role span')[{row}]?.outerText")
    return "" if role is None else str(role)


def _ask_shop(shop: str, path: str, query: Mapping[str, str] | None = None) -> Any:
    """Ask the shop's REST interface, as its administrator."""
    requests: Any = need("requests")
    account = ACCOUNTS["shopping_admin"]
    try:
        with requests.Session() as session:
            session.trust_env = False
            token = session.post(
                f"{shop}/rest/default/V1/integration/admin/token",
                json={"username": account.name, "password": account.password},
                timeout=TIMEOUT_S,
                allow_redirects=False,
            )
            token.raise_for_status()
            answer = session.get(
                f"{shop}/rest/V1/{path}",
                params=query,
                headers={"Authorization": f"Bearer {token.json()}"},
                timeout=TIMEOUT_S,
                allow_redirects=False,
            )
            answer.raise_for_status()
            return answer.json()
    except (requests.RequestException, ValueError) as e:
        raise EnvError(
            f"WebArenaEnv: the shop's REST interface must answer; got {type(e).__name__}: {e}. Check the shop."
        ) from e
