"""What a model says costs time that grows with its length, and not with its square: every reader of its words."""

import contextlib
import time

import gymnasium
import pytest

from rllm_gym.envs.agents.formats import FORMATS
from rllm_gym.envs.alfworld import env as alfworld
from rllm_gym.envs.base import MAX_TEXT_CHARS
from rllm_gym.envs.poker.rules import move_in, rules_of
from rllm_gym.envs.textworld.games import as_command
from rllm_gym.envs.web import actions
from rllm_gym.envs.webarena import agentgym as webarena_agentgym

MOST_CPU_S = 0.5  # a reader whose time grows with the square takes more than a second
PIECES = (
    "<think>", "</think>", "<search>", "<answer>", "</answer>", "<information>", "```python\n", "```", "Action:",
    "Thought: ", "{", "[", "(", '"', "\\", "<tool_call>", "<tool_call>{", "\n", '{"name": "', "'", "a ", "stop [", "`",
    "type [1] [", "[1]", " in ", "put a in b ", " to ", "press [", "=", ",", "1", "\t", "\u00e9", "craft 1 ",
    "\\boxed{", "- ", "#",
)  # fmt: skip
TEXTS = [
    *(piece * (MAX_TEXT_CHARS // len(piece)) for piece in PIECES),
    *(f"x{piece}" * (MAX_TEXT_CHARS // (1 + len(piece))) + "\n" for piece in PIECES),
    " " * MAX_TEXT_CHARS + "x\n",
    "stop [" + "]" * MAX_TEXT_CHARS + "\n",
    "type [1] [" + "] [" * (MAX_TEXT_CHARS // 3) + "\n",
    "put " + "a in " * (MAX_TEXT_CHARS // 5) + "\n",
    "move " + "a to " * (MAX_TEXT_CHARS // 5) + "\n",
]


def slow(read):
    """Return the texts that take a reader too long, each with the shortest of its times.

    One that takes too long is read twice more, since a busy machine stretches a time.
    """
    found = []
    for text in TEXTS:
        seconds = cpu_s(read, text)
        if seconds > MOST_CPU_S:
            seconds = min(seconds, cpu_s(read, text), cpu_s(read, text))
        if seconds > MOST_CPU_S:
            found.append((text[:20], round(seconds, 2)))
    return found


def cpu_s(read, text):
    begin_s = time.thread_time()
    with contextlib.suppress(Exception):  # most are no action
        read(text)
    return time.thread_time() - begin_s


ENVS = [
    ("TextCraft-v0", {}),
    ("BabyAI-v0", {}),
    ("SearchQA-v0", {}),
    ("TextArena-v0", {}),
    *((env, {"protocol": "agentgym"}) for env in ("TextCraft-v0", "BabyAI-v0", "SearchQA-v0")),
    *(("TextCraft-v0", {"agent": {"format": name}}) for name in FORMATS if name not in ("native", "tools")),
]


@pytest.mark.parametrize(("id", "env_config"), ENVS, ids=str)
def test_an_environment_reads_long_texts_in_linear_time(id, env_config):
    env = gymnasium.make(f"rllm_gym:rllm_gym/{id}", obs_type="text", **env_config)
    env.reset(seed=0)
    assert slow(env.unwrapped.step if not env_config.get("agent") else env.step) == []
    env.close()


@pytest.mark.parametrize(
    "read",
    [
        actions.parse,
        lambda text: actions.parse(text, has_pointer=True),
        webarena_agentgym.read_action,
        as_command,
        alfworld._otherwise,
        lambda text: move_in(text, rules_of("kuhn_poker"), thoughts=True),
    ],
    ids=["web", "pointer", "webarena", "textworld", "alfworld", "poker"],
)
def test_a_reader_takes_linear_time(read):
    assert slow(read) == []
