"""Records episodes of AgentGym's own clients on its own servers, into tests/golden/agentgym_<environment>.json.

    AGENTGYM_SRC=<a checkout of github.com/WooooDyy/AgentGym> python -m tools.record_agentgym_protocol ENVIRONMENT

ENVIRONMENT is babyai, sciworld, searchqa, textcraft or webarena. AGENTGYM_PYTHON is an interpreter with what the server
of that environment pins (for BabyAI minigrid<2.5, gymnasium<1, gym, matplotlib), by default this one. SearchQA's server
runs in this process, with the embedded passages in place of its index; WebArena's, too, with this package's browser and
sites in place of ScriptBrowserEnv.

The policy is this package's expert, which makes mistakes of form now and then. AgentGym-RL at e182a6b takes its clients
from AgentGym, and has none of its own.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import random
import runpy
import sys
import tempfile
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import requests

import rllm_gym  # noqa: F401  (registers the environments)
from rllm_gym.envs.textcraft.recipes import identify
from tools.agentgym_server import COMMIT, REPOSITORY, agentgym_class, own_server, source

GOLDEN = Path(__file__).resolve().parent.parent / "tests" / "golden"
MAX_TURNS = 12
# The module and the class of AgentGym's client, this package's environment, and the items that are played.
PLAYED: dict[str, tuple[str, str, list[int]]] = {
    "textcraft": ("TextCraftEnvClient", "TextCraft-v0", list(range(0, 540, 22))),
    "babyai": ("BabyAIEnvClient", "BabyAI-v0", [*range(40), 155, 156, 622]),
    "sciworld": ("SciworldEnvClient", "SciWorld-v0", [0, 1, 60, *range(100, 4600, 205)]),
    "searchqa": ("SearchQAEnvClient", "SearchQA-v0", list(range(0, 240, 10))),
    "webarena": ("WebarenaEnvClient", "WebArena-v0", list(range(0, 360, 17))),
}  # fmt: skip


def play(kind: str, url: str) -> list[dict[str, Any]]:
    """Play the items and return the episodes: what AgentGym's client says, and what it makes of each text."""
    class_name, name, items = PLAYED[kind]
    client = agentgym_class(class_name)(env_server_base=url, data_len=10)
    start = [message["value"] for message in client.conversation_start]
    env: Any = gymnasium.make(f"rllm_gym/{name}", obs_type="text", protocol="agentgym", split="all")
    rng = random.Random(0)
    episodes = []
    for item in items:
        client.reset(item)
        opening = client.observe()
        opening = opening["observation"] if isinstance(opening, dict) else opening
        if kind == "textcraft":
            goal = opening.rpartition("Goal: craft ")[2].removesuffix(".")
            item_id = identify(goal)
        else:
            item_id = f"{kind}_{item}"
        env.reset(seed=0, options={"item_id": item_id})
        steps = []
        for _ in range(MAX_TURNS):
            text = env.unwrapped.expert_action()
            if rng.random() < 0.25:
                text = misspelt(text, rng)
            env.step(text)
            output = client.step(text)
            steps.append([text, output.state, output.reward, output.done])
            if output.done:
                break
        episodes.append({"item_id": item_id, "opening": opening, "steps": steps})
    client.close()
    env.close()
    return [{"conversation_start": start}, *episodes]


def misspelt(text: str, rng: random.Random) -> str:
    """Return a text with a mistake of form, or of an action."""
    action = text.rpartition("Action:")[2].strip()
    return rng.choice(
        [
            f"{text}\n\nAction:\n{action}",
            action,
            f"Thought: I try.\nAction: **{action}**!\nAnd then I wait.",
            f"Action: {action.upper()}",
            "Action:",
            "Action: fly to the moon_base",
            "Action: check valid actions",
            "<search></search>",
            "<think>x</think><answer>no</answer><answer>nobody</answer>",
            "```click [99999]``` or ```stop [x]```",
            "```click```",
            "```scroll [down]```",
            "```go_back now```",
            "I do not know.",
            "",
        ]
    )


@contextlib.contextmanager
def in_process(answer: Any) -> Iterator[str]:
    """Answer what `requests` sends by a function of path and body."""
    original: Any = (requests.post, requests.get)

    def send(address: str, json: Any = None, timeout: float = 0) -> Any:
        path, _, query = address.removeprefix("http://here/").partition("?")
        body = dict(json or {}) | {key: int(value) for key, _, value in [query.partition("=")] if key}
        reply = answer(path, body)
        return types.SimpleNamespace(status_code=200, json=lambda: reply)

    library: Any = requests
    library.post = library.get = send
    try:
        yield "http://here"
    finally:
        library.post, library.get = original


def searchqa_answers() -> Any:
    """Return AgentGym's SearchQA server as a function, over the embedded questions and passages."""
    env: Any = gymnasium.make("rllm_gym/SearchQA-v0", obs_type="text", split="all").unwrapped
    rows = [
        {"question": question.text, "reward_model": {"ground_truth": {"target": list(question.answers)}}}
        for question in (env._questions[number] for number in range(env.num_items))
    ]

    class Retriever:
        def search(self, query: list[str], num: int, return_score: bool) -> Any:
            (found,) = env._load_retriever().search(query, num)
            return [{"contents": passage.contents} for passage in found], [0.0] * len(found)

    sys.path.insert(0, str(source("agentenv-searchqa")))
    package = types.ModuleType("agentenv_searchqa")
    package.__path__ = [str(source("agentenv-searchqa", "agentenv_searchqa"))]
    stubs: dict[str, Any] = {
        "agentenv_searchqa": package,
        "datasets": types.SimpleNamespace(load_dataset=lambda *args, **options: {"train": rows}),
        "agentenv_searchqa.retriever": types.SimpleNamespace(get_retriever=lambda config: Retriever()),
        "agentenv_searchqa.utils": types.SimpleNamespace(Config=lambda **options: None),
    }
    sys.modules.update(stubs)
    server = importlib.import_module("agentenv_searchqa.env_wrapper").searchqa_env_server

    def answer(path: str, body: dict[str, Any]) -> Any:
        if path == "create":
            return server.create(body["id"])
        if path == "reset":
            return server.reset(body["env_idx"], body["id"])
        if path == "observation":
            return server.observation(body["env_idx"])
        if path == "close":
            return server.close(body["env_idx"])
        observation, reward, done, _ = server.step(body["env_idx"], body["action"])
        return {"observation": observation, "reward": reward, "done": done}

    return answer


def webarena_answers() -> Any:
    """Return AgentGym's WebArena server as a function; its browser is this package's, on the embedded sites."""
    from rllm_gym.envs.webarena.agentgym import SHOWN_AS, read_action
    from rllm_gym.envs.webarena.embedded import SITE_URLS

    for site, url in SHOWN_AS.items():
        os.environ[site.upper()] = SITE_URLS.get(site, url)
    folder = source("agentenv-webarena", "webarena")
    sys.path[:0] = [str(folder), str(folder.parent)]
    stubs: dict[str, Any] = {  # what only its agents and evaluators need
        "agent": types.ModuleType("agent"),
        "agent.prompts": types.SimpleNamespace(
            PromptConstructor=object, APIInput=object, __all__=["PromptConstructor"]
        ),
        "evaluation_harness": types.SimpleNamespace(evaluator_router=None),
    }
    sys.modules.update(stubs)
    package = types.ModuleType("agentenv_webarena")
    package.__path__ = [str(folder.parent / "agentenv_webarena")]
    sys.modules["agentenv_webarena"] = package
    # The prompt lies there as a Python file, of which WebArena makes the JSON that its server reads (to_json.py).
    prompt = runpy.run_path(str(folder / "agent" / "prompts" / "raw" / "p_cot_id_actree_2s.py"))["prompt"]
    with tempfile.TemporaryDirectory() as workplace, contextlib.chdir(workplace):
        written = Path("agent/prompts/jsons/p_cot_id_actree_2s.json")
        written.parent.mkdir(parents=True)
        written.write_text(json.dumps(prompt), encoding="utf-8")
        server = importlib.import_module("agentenv_webarena.environment").webarena_env_server

    env: Any = gymnasium.make("rllm_gym/WebArena-v0", obs_type="text", protocol="agentgym", split="all").unwrapped
    actions = importlib.import_module("browser_env.actions")
    last: dict[str, Any] = {}

    def state() -> tuple[dict[str, str], dict[str, Any]]:
        text = env._observe()
        tree = text.removeprefix("OBSERVATION:\n").rpartition("\nURL: ")[0]
        nodes = {str(node.id): {"text": node.line} for node in env.nodes}
        info = {
            "page": types.SimpleNamespace(url=env.page.url),
            "observation_metadata": {"text": {"obs_nodes_info": nodes}},
        }
        return {"text": tree}, info

    def command(idx: int, name: str, **data: Any) -> Any:
        if name == "step":
            action = data["action"]
            if action["action_type"] == actions.ActionTypes.STOP:
                last["verdict"] = env._evaluate(action["answer"])
            else:
                env._carry_out(
                    env.page, read_action(server.prompt_constructor.extract_action(action["raw_prediction"]))
                )
            observation, info = state()
            return observation, 0, False, False, info
        if name == "eval":
            return last["verdict"].reward
        return None

    server.send_command = command

    def answer(path: str, body: dict[str, Any]) -> Any:
        if path == "create":
            return {"env_idx": 0}
        if path == "reset":
            env.reset(seed=0, options={"item_id": body["idx"]})
            observation, info = state()
            server.intent[0] = env.instruction
            server.trajectory[0] = [{"observation": observation, "info": info}]
            server.state_info[0] = server.trajectory[0][0]
            server.meta_data[0] = {"action_history": ["None"]}
            return {"observation": observation["text"]}
        if path == "observation":
            return server.observation(0)
        if path == "close":
            env.close()
            return {}
        observation, reward, terminated, truncated, _ = server.step(0, body["action"])
        return {"observation": observation, "reward": reward, "terminated": terminated, "truncated": truncated}

    return answer


def main(kind: str) -> None:
    answers = {"searchqa": searchqa_answers, "webarena": webarena_answers}
    with in_process(answers[kind]()) if kind in answers else own_server(kind) as url:
        start, *episodes = play(kind, url)
    golden = {"repository": REPOSITORY, "commit": COMMIT, **start, "episodes": episodes}
    file = GOLDEN / f"agentgym_{kind}.json"
    lines = ",\n".join(json.dumps(episode) for episode in golden.pop("episodes"))
    file.write_text(f'{json.dumps(golden)[:-1]}, "episodes": [\n{lines}\n]}}\n', encoding="utf-8")
    num_steps = sum(len(episode["steps"]) for episode in episodes)
    print(f"{file.name}: {len(episodes)} episodes, {num_steps} steps, {file.stat().st_size} bytes")


if __name__ == "__main__":
    main(sys.argv[1])
