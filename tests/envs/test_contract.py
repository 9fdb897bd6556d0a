"""What every registered environment promises, at the text level, driven by its own expert."""

import copy
import functools
import gc
import math
import pickle
import time
from pathlib import Path
from random import Random

import gymnasium
import pytest

import rllm_gym  # noqa: F401  (registers the environments)
from rllm_gym.envs.contract import NONSENSE, RULES
from rllm_gym.memory import process_tree_bytes
from rllm_gym.registration import TEXT_AND_TOKEN_FACTORY
from tests.envs.hostile import hostile_texts
from tests.needs import OF_ENVIRONMENTS, missing, skip_without
from tests.serving import serving

# A program cannot be copied or played twice alike: tests/envs/test_program.py plays it.
NOT_OURS = ("rllm_gym/Program-v0",)
IDS = sorted(
    key
    for key, spec in gymnasium.registry.items()
    if key.startswith("rllm_gym/") and key not in NOT_OURS and spec.entry_point == TEXT_AND_TOKEN_FACTORY
)
# Where a reset takes more than 1 ms; else 10,000.
NUM_RESETS = {"rllm_gym/BabyAI-v0": 2_000, "rllm_gym/SciWorld-v0": 100, "rllm_gym/TextWorld-v0": 100}
# An environment with a process of its own shows a bound of the whole, in bytes, instead of a growth by resets.
BOUND = {"rllm_gym/SciWorld-v0": 1.5e9}
# Where an expert's episode takes seconds: items with short ones, of both splits.
QUICK_ITEMS = {"rllm_gym/SciWorld-v0": [1398, 2966, 3266, 3476, 3566, 3866, 4252, 4340, 4377, 4465, 4502, 4590]}
QUICK_ITEMS["rllm_gym/TextWorld-v0"] = [1, 2, 3, 11, 12, 13, 1801, 1802]  # each is made anew in every process

NUM_RESETS["rllm_gym/ALFWorld-v0"] = 20
BOUND["rllm_gym/ALFWorld-v0"] = 1.5e9
NUM_RESETS["rllm_gym/MiniWoB-v0"] = 50
BOUND["rllm_gym/MiniWoB-v0"] = 1.5e9
QUICK_ITEMS["rllm_gym/MiniWoB-v0"] = [
    f"miniwob_{task}" for task in ("click-tab", "enter-text", "find-word", "read-table")
]
NUM_RESETS["rllm_gym/WebArena-v0"] = 50
BOUND["rllm_gym/WebArena-v0"] = 1.5e9
QUICK_ITEMS["rllm_gym/WebArena-v0"] = [0, 6, 24, 30, 91, 244, 307, 331, 336, 357]
# Played on a server of TextCraft's, whose address comes with the fixture below.
REMOTE = {"rllm_gym/AgentGym-v0": "/agentgym", "rllm_gym/OpenEnv-v0": ""}
NUM_RESETS |= dict.fromkeys(REMOTE, 1_000)
URL: list[str] = []
# One worker plays all of an environment: its Java or browser serves every test, see `what_it_needs`.
pytestmark = pytest.mark.parametrize(
    "env_id", [pytest.param(env_id, marks=pytest.mark.xdist_group(env_id)) for env_id in IDS]
)


@pytest.fixture(scope="module")
def stay_open():
    """Environments whose process would end with each test, and takes seconds to start."""
    envs = {}
    yield envs
    for env in envs.values():
        env.close()


@pytest.fixture(autouse=True)
def what_it_needs(env_id, request, stay_open):
    skip_without(OF_ENVIRONMENTS.get(env_id))
    if env_id == "rllm_gym/ALFWorld-v0":
        request.getfixturevalue("alfworld_data")
    if env_id in REMOTE:
        request.getfixturevalue("textcraft_server")
    if env_id in BOUND and env_id not in stay_open and request.node.get_closest_marker("slow") is None:
        stay_open[env_id] = make(env_id)
        stay_open[env_id].reset(seed=0)


@pytest.fixture(scope="module")
def textcraft_server():
    protocol = "agentgym" if missing("openenv") else "both"
    with serving("--env", "TextCraft-v0", "--workers", "2", "--protocol", protocol) as served:
        URL.append(served.url)
        yield
        URL.clear()


def make(env_id, **kwargs):
    return gymnasium.make(env_id, **{**defaults(env_id), **kwargs})


def defaults(env_id):
    quick = {"item_ids": QUICK_ITEMS[env_id], "split": "train"} if env_id in QUICK_ITEMS else {}
    remote = {"url": URL[0] + ("" if missing("openenv") else REMOTE[env_id])} if env_id in REMOTE else {}
    return {"obs_type": "text", **quick, **remote}


@pytest.mark.promise
@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_it_keeps_the_rule(env_id, rule):
    rule(functools.partial(make, env_id))


def test_train_is_the_split_where_none_is_asked_for(env_id):
    assert make(env_id).unwrapped.item_ids == make(env_id, split="train").unwrapped.item_ids


def test_nonsense_is_an_ordinary_turn_without_reward_and_an_invalid_action(env_id):
    env = make(env_id)
    env.reset(seed=0)
    for text in NONSENSE:
        observation, reward, terminated, truncated, info = env.step(text)
        assert observation in env.observation_space
        assert (reward, terminated, truncated, info["is_success"]) == (0.0, False, False, False)
        assert info["is_invalid_action"] is True
    assert pickle.loads(pickle.dumps(env)).step("")[4]["is_invalid_action"] is True
    assert env.step(env.unwrapped.expert_action())[4]["is_invalid_action"] is False
    env.step("")
    assert env.reset(seed=0)[1]["is_invalid_action"] is False


def test_max_episode_steps_truncates_and_nothing_else_does(env_id):
    env = make(env_id, max_episode_steps=3)
    env.reset(seed=0)
    assert [env.step("fly to the moon")[2:4] for _ in range(3)] == [(False, False), (False, False), (False, True)]


@pytest.mark.parametrize(
    "clone", [copy.deepcopy, lambda env: pickle.loads(pickle.dumps(env))], ids=["deepcopy", "pickle"]
)
def test_a_copy_made_in_mid_episode_goes_on_alike_and_apart(env_id, clone):
    env = make(env_id)
    env.reset(seed=1)
    env.step(env.unwrapped.expert_action())
    other = clone(env)
    for _ in range(3):
        action = env.unwrapped.expert_action()
        assert other.unwrapped.expert_action() == action
        assert env.step(action) == other.step(action)
    assert env.reset() == other.reset()
    before = env.unwrapped.expert_action()
    other.step(before)
    assert env.unwrapped.expert_action() == before


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["sync", "async"])
def test_vector_environments_pass_each_environment_its_own_text(env_id, mode):
    # A letter with an accent, a character beyond 16 bits and a lone surrogate must survive shared memory.
    texts = ["Action: caf\u00e9 \U0001f332", "Action: \ud800"]
    singles = [make(env_id), make(env_id)]
    vector = gymnasium.make_vec(f"rllm_gym:{env_id}", num_envs=2, vectorization_mode=mode, **defaults(env_id))
    try:
        observations, infos = vector.reset(seed=[5, 6])
        first = tuple(env.reset(seed=seed)[0] for env, seed in zip(singles, (5, 6), strict=True))
        assert observations == first
        assert list(infos["item_id"]) == [env.unwrapped._info()["item_id"] for env in singles]
        replies = vector.step(texts)[0]
        assert replies == tuple(env.step(text)[0] for env, text in zip(singles, texts, strict=True))
        assert observations == first  # a copy, not a view of what the next step overwrites
    finally:
        vector.close()


def anonymous_kb():
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Anonymous:"))


@pytest.mark.slow
def test_resets_grow_memory_by_under_a_kilobyte_each(env_id):
    env = make(env_id)
    num_resets = NUM_RESETS.get(env_id, 10_000)

    def play(num_episodes):
        for seed in range(num_episodes):
            env.reset(seed=seed)
            env.step("" if env_id in BOUND else env.unwrapped.expert_action())
        gc.collect()

    if env_id in BOUND:
        play(num_resets)
        assert 50e6 < process_tree_bytes(with_root=False) < BOUND[env_id]
    else:
        play(500)
        before = anonymous_kb()
        play(num_resets)
        assert anonymous_kb() - before < num_resets
    env.close()


STEP_LIMIT_S = 10.0  # that the games' processes document; the other environments take far less
PIECES = (
    "\\boxed{look}", "\\n", "\\text{go east}", "\\", "$x$", "```python\nlook\n```", "<think>", "</think>",
    "<search>", "</search>", "{{", "}}", '{"name": "look", "arguments": {}}', "<tool_call>", "Action:", "Thought:",
    "look", "0", "-1", "'; --", "%s%n", "../..", "9" * 400, "\t", "\n", "\r\n",
    "\x00", "\x07", "\x1b[2J", "\x7f", "\u202e", "\ud800", "\ufeff",
    "\u5f00\u95e8", "\u0627\u0641\u062a\u062d", "\U0001f332",
)  # fmt: skip


def written_by_a_model(random):
    """Return a text as models write one on a bad day; one in a hundred has 100,000 characters."""
    text = random.choice(("", " ", "\n")).join(random.choices(PIECES, k=random.randint(1, 12)))
    return text * (1 + 100_000 // len(text)) if random.random() < 0.01 else text


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_nothing_that_a_model_writes_takes_it_down_or_makes_it_wait(env_id):
    random = Random(0)
    env = make(env_id)
    env.reset(seed=0)
    slowest_s = 0.0
    for number in range(1_000):
        action = written_by_a_model(random)
        begun_s = time.monotonic()
        _, reward, terminated, truncated, info = env.step(action)
        slowest_s = max(slowest_s, time.monotonic() - begun_s)
        assert math.isfinite(reward) and isinstance(info["is_invalid_action"], bool), action
        if terminated or truncated:
            env.reset(seed=number)
    env.close()
    assert slowest_s < STEP_LIMIT_S


# Seconds that a step may take, where the environment documents another limit than that of a game's process.
MOST_STEP_S = {"rllm_gym/WebArena-v0": 60.0, "rllm_gym/MiniWoB-v0": 60.0}


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_it_stands_whatever_a_model_writes(env_id):
    env = make(env_id)
    env.reset(seed=0)
    memory = process_tree_bytes()
    for number, text in enumerate(hostile_texts(7, 1_000)):
        begin_s = time.monotonic()
        observation, reward, terminated, truncated, _ = env.step(text)
        assert time.monotonic() - begin_s < MOST_STEP_S.get(env_id, 15.0), text[:100]
        assert math.isfinite(reward) and observation in env.observation_space, text[:100]
        if terminated or truncated or number % 100 == 99:
            env.reset(seed=number)
    assert process_tree_bytes() - memory < 1e9
    before, _ = env.reset(seed=3)
    env.close()
    again = make(env_id)
    assert again.reset(seed=3)[0] == before  # nothing of it stays in the tasks
    again.close()
