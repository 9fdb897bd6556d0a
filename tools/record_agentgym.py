"""Records what AgentGym's own clients ask and are answered, into tests/golden/agentgym_requests.json.

    AGENTGYM_SRC=<a checkout of github.com/WooooDyy/AgentGym> python -m tools.record_agentgym

TextCraft is played on AgentGym's own server, so that the answers are its; the other environments on this package's,
for AgentGym's servers of these need what it pins.
"""

from __future__ import annotations

import contextlib
import functools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import requests

import rllm_gym  # noqa: F401  (registers the environments)
from rllm_gym.envs.textcraft.recipes import display, load_book
from tools.agentgym_server import COMMIT, agentgym_class, own_server

GOLDEN = Path(__file__).resolve().parent.parent / "tests" / "golden" / "agentgym_requests.json"
# The class of AgentGym's client, this package's environment, the items to play, and how its client's reset names them.
PLAYED = {
    "textcraft": ("TextCraftEnvClient", "TextCraft-v0", (0, 17), "idx"),
    "babyai": ("BabyAIEnvClient", "BabyAI-v0", (0, 3), "data_idx"),
    "searchqa": ("SearchQAEnvClient", "SearchQA-v0", (0, 3), "id"),
}


def play(env_type: str, url: str) -> list[float]:
    """Play items with AgentGym's client and this package's expert; return the last reward of each."""
    class_name, name, items, keyword = PLAYED[env_type]
    client = agentgym_class(class_name)(env_server_base=url, data_len=10)
    env: Any = gymnasium.make(f"rllm_gym/{name}", obs_type="text")
    rewards = []
    for item in items:
        client.reset(**{keyword: item})
        opening = client.observe()
        if env_type == "textcraft":  # whose items follow the order in which the file system lists its recipes
            item = item_of_goal(opening.rpartition("\n")[2])
        env.reset(seed=42, options={"item_id": item})
        for _ in range(50):
            action = env.unwrapped.expert_action()
            env.step(action)
            output = client.step(action)
            if output.done:
                break
        rewards.append(output.reward)
    client.close()
    return rewards


def item_of_goal(line: str) -> int:
    """Return the number of TextCraft's item whose first observation ends in this line."""
    book = load_book()
    return next(n for n, goal in enumerate(book.goals) if f"Goal: craft {display(goal)}." == line)


@contextlib.contextmanager
def recorded(url: str) -> Iterator[list[list[Any]]]:
    """Note every request of `requests.post` and `requests.get` to a server: method, path, body, answer."""
    found: list[list[Any]] = []
    original: dict[str, Any] = {"post": requests.post, "get": requests.get}

    def note(method: str, address: str, **options: Any) -> Any:
        body = dict(options["json"]) if options.get("json") is not None else None
        response = original[method](address, **options)
        found.append([method, address.removeprefix(url), body, response.json()])
        return response

    library: Any = requests
    library.post, library.get = functools.partial(note, "post"), functools.partial(note, "get")
    try:
        yield found
    finally:
        library.post, library.get = original["post"], original["get"]


def main() -> None:
    from tests.serving import serving

    golden: dict[str, Any] = {"commit": COMMIT}
    with own_server("textcraft") as url, recorded(url) as golden["textcraft"]:
        assert play("textcraft", url) == [1, 1]
    others = {env_type: PLAYED[env_type][1] for env_type in PLAYED if env_type != "textcraft"}
    arguments = [word for name in others.values() for word in ("--env", name)]
    with serving(*arguments, "--workers", "1", "--protocol", "agentgym") as served:
        for env_type, name in others.items():
            with recorded(f"{served.url}/{name}") as golden[env_type]:
                assert min(play(env_type, f"{served.url}/{name}")) > 0
    GOLDEN.write_text(json.dumps(golden, indent=1) + "\n", encoding="utf-8")
    print({key: len(value) for key, value in golden.items()})


if __name__ == "__main__":
    main()
