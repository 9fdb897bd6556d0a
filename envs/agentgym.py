"""`AgentGymProtocol`: a text environment in the words, with the rules and with the rewards of AgentGym."""

from __future__ import annotations

import re
from typing import Any

from rllm_gym.envs.agents.functions import Language
from rllm_gym.envs.base import TextEnv

REACT = "Thought:\n{thought}\n\nAction:\n{action}"
OK = "OK. I'll follow your instructions and try my best to solve the task."
TWO_ACTIONS = "Error: Only one 'Action' is allowed per response. Please adjust your response."
_ACTION = re.compile(r"Action:\s*(.*?)(?=\n|$)", re.DOTALL)


class AgentGymProtocol(TextEnv):
    """The form of an environment under `protocol: agentgym`; mixed into its class, which writes the rest.

    The first user turn is the instruction of AgentGym's client, and the policy is taken to have answered "OK"
    (`preamble`); then comes the first observation. There is no system prompt, so that a chat template writes its own
    default, as in AgentGym-RL. `act` returns what AgentGym's client returns for a step.

    AgentGym's reward of an episode is that of its last step. A step here has the change of it as its reward, so that
    the return of an episode is AgentGym's; `info["agentgym_reward"]` is the client's own.

    Source: Xi et al. 2024 (AgentGym), arXiv:2406.04151; github.com/WooooDyy/AgentGym at 3ef9235; AgentGym-RL,
    arXiv:2509.08755, at e182a6b (verl/workers/rollout/agent_vllm_rollout/vllm_rollout.py).
    """

    default_system_prompt = ""
    introduction = ""
    turn_form = REACT
    _client_reward = 0.0  # of the last step

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        observation, info = super().reset(seed=seed, options=options)
        self._client_reward = 0.0
        return observation, {**info, "agentgym_reward": 0.0}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        reply, reward, terminated, truncated, info = super().step(action)
        change, self._client_reward = reward - self._client_reward, reward
        return reply, change, terminated, truncated, {**info, "agentgym_reward": reward}

    def expert_action(self) -> str:
        language = Language.of(self)
        return language.join(*language.split(super().expert_action()))


def cleaned_action(text: str) -> str | None:
    """Return the action that AgentGym's clients of TextCraft and BabyAI read in a text, or None for two or more.

    The action is the line after "Action:" (or "" where there is none), with nothing but ASCII letters, digits, commas
    and single spaces.
    """
    found = _ACTION.findall(text)
    if len(found) > 1:
        return None
    return " ".join(re.sub(r"[^A-Za-z0-9, ]+", "", "".join(found)).split())
