"""AgentGym's protocol: what its own clients asked and its own server answered, and each environment's shapes."""

from __future__ import annotations

import json

import pytest
import requests

from tests.needs import skip_without
from tests.serving import ROOT, serving
from tools.record_agentgym import item_of_goal

GOLDEN = json.loads((ROOT / "tests" / "golden" / "agentgym_requests.json").read_text(encoding="utf-8"))
NAMES = {"textcraft": "TextCraft-v0", "babyai": "BabyAI-v0", "searchqa": "SearchQA-v0"}


@pytest.fixture(scope="module")
def url():
    arguments = [word for name in NAMES.values() for word in ("--env", name)]
    with serving(*arguments, "--workers", "1", "--protocol", "agentgym") as served:
        yield served.url


def kinds(answer):
    """Return the keys of an answer with the types of their values; whole numbers pass for numbers."""
    if isinstance(answer, dict):
        return {key: kinds(value) for key, value in answer.items()}
    return "number" if isinstance(answer, int | float) and not isinstance(answer, bool) else type(answer).__name__


@pytest.mark.promise
@pytest.mark.parametrize("env_type", NAMES)
def test_what_agentgyms_clients_ask_is_answered_in_the_same_shapes_and_with_the_same_rewards(url, env_type):
    key = "env_idx" if env_type == "searchqa" else "id"
    session = None
    for method, path, body, expected in GOLDEN[env_type]:
        body = dict(body) if body else body
        if body is not None and path != "/create" and "/observation" not in path:
            body[key] = session
        if env_type == "textcraft" and path == "/reset":  # its items follow the order of the file system's list
            body["data_idx"] = item_of_goal(expected["observation"].rpartition("\n")[2])
        path = path.partition("?")[0] + (f"?{key}={session}" if "?" in path else "")
        answer = requests.request(method, f"{url}/{NAMES[env_type]}{path}", json=body, timeout=30)
        assert answer.status_code == 200, answer.text
        answer = answer.json()
        assert kinds(answer) == kinds(expected), path
        if path == "/create":
            session = answer if isinstance(answer, int) else answer["id"]
        elif path == "/step":
            assert answer == expected  # the observation, too
    assert session is not None


def test_textcraft_has_its_other_routes(url):
    base = f"{url}/TextCraft-v0"
    created = requests.post(
        f"{base}/create", json={"minecraft_dir": "x/", "commands": None, "goal": None}, timeout=10
    ).json()
    session = {"id": created["id"]}
    opening = requests.post(f"{base}/reset", json={**session, "data_idx": 17}, timeout=10).json()["observation"]
    assert requests.get(f"{base}/", timeout=10).json() == "This is environment TextCraft."
    assert requests.get(f"{base}/observation", params=session, timeout=10).json() == opening
    commands = requests.get(f"{base}/commands", params=session, timeout=10).json()
    goal = requests.get(f"{base}/goal", params=session, timeout=10).json()
    assert opening == f"Crafting commands:\n{commands}\n\nGoal: craft {goal[10:].replace('_', ' ')}."
    assert requests.get(f"{base}/detail", params=session, timeout=10).json() == {
        "observation": opening,
        "done": False,
        "reward": 0.0,
        "deleted": False,
    }
    # A task reads alike at each reset, as there.
    assert requests.post(f"{base}/reset", json={**session, "data_idx": 17}, timeout=10).json()["observation"] == opening


@pytest.mark.slow
def test_sciworld_has_its_shapes():
    skip_without("java")
    with serving("--env", "SciWorld-v0", "--workers", "1", "--protocol", "agentgym") as served:

        def post(path, **body):
            return requests.post(f"{served.url}/{path}", json=body, timeout=60).json()

        session = post("create")
        assert set(session) == {"id"}
        begun = post("reset", **session, data_idx=3266)
        assert set(begun) == {
            *("task_name", "var_num", "task_description", "observation"),
            *("reward", "score", "deleted", "done"),
        }
        assert begun["task_description"].startswith("Your task is to")
        assert begun["observation"].startswith("This room is called")
        step = post("step", **session, action="open door to kitchen")
        assert set(step) == {"observation", "reward", "score", "done"}
        hint = requests.get(f"{served.url}/action_hint", params=session, timeout=60).json()
        assert "look around" in hint["possible_actions"] and len(hint["possible_objects"]) > 5
        goals = requests.get(f"{served.url}/goals", params=session, timeout=60).json()["goals"]
        assert "GOAL" in goals.upper()
        detail = requests.get(f"{served.url}/detail", params=session, timeout=60).json()
        assert detail["observation"] == step["observation"]
        assert post("close", **session) is True


@pytest.mark.slow
def test_webarena_has_its_shapes():
    skip_without("browser")
    with serving("--env", "WebArena-v0", "--workers", "1", "--protocol", "agentgym") as served:

        def post(path, **body):
            return requests.post(f"{served.url}/{path}", json=body, timeout=100).json()

        session = post("create")
        assert set(session) == {"env_idx"}
        begun = post("reset", **session, seed=0, idx=0)
        assert set(begun) == {"observation", "sites", "object"}
        assert begun["observation"].startswith(f"OBJECTIVE: {begun['object']}")
        assert isinstance(begun["sites"], list) and begun["sites"]
        assert requests.get(f"{served.url}/observation", params=session, timeout=10).json() == begun["observation"]
        step = post("step", **session, action="```stop [nothing]```")
        assert set(step) == {"observation", "reward", "terminated", "truncated", "info"}
        assert step["terminated"] is True
        assert post("close", **session) == {"closed": "closed"}
