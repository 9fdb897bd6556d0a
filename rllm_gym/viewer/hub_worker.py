"""The process of one hub session: an environment, and perhaps a model, which nothing else waits for.

An environment is foreign code that may hang or die, and so may a browser or a virtual machine below it: in a process
of its own it can be ended at any time. It is played at the level of tokens, as in training, so that what comes of it is
the same record.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import tempfile
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from rllm_gym.errors import ConfigError
from rllm_gym.rollout.env_pool import describe
from rllm_gym.types import AGENT, NOT_STORED, Logps, TokenIds, Turn

MAX_NEW_TOKENS = 256
MAX_ACTION_CHARS = 20_000


def work(connection: Connection, settings: Mapping[str, Any]) -> None:
    """Answer calls until the other end is closed: (name, arguments) gets (True, result) or (False, what went wrong)."""
    os.setsid()  # so that whatever an environment starts can be ended with it
    session = _Session(**settings)
    with contextlib.suppress(EOFError, OSError, KeyboardInterrupt):
        while True:
            name, arguments = connection.recv()
            try:
                answer = True, getattr(session, name)(**arguments)
            except ConfigError as error:
                answer = False, str(error)
            except BaseException as error:  # an environment may raise anything
                answer = False, describe(error)
            connection.send(answer)
            if name == "close":
                return
    session.close()


class _Session:
    """One environment that is played by hand, by its expert or by a model.

    Args:
        modules: imported first; they register environments.
        env: a Gymnasium id.
        env_config: its keywords.
        policy: a checkpoint, or a model's name or folder; "" for none. Its tokenizer is the session's.
        horizon: in turns; None is no limit.
    """

    def __init__(
        self, modules: Sequence[str], env: str, env_config: Mapping[str, Any], policy: str, horizon: int | None
    ) -> None:
        for module in modules:
            importlib.import_module(module)
        self._env_id, self._env_config, self._policy, self._horizon = env, dict(env_config), policy, horizon
        self._env: Any = None
        self._engine: Any = None
        self._model_folder = tempfile.TemporaryDirectory(prefix="rllm_gym_view_")
        self._record: dict[str, Any] = {}
        self._turns: list[Turn] = []
        self._ids: list[int] = []  # the present context
        self._observation: list[int] = []  # what the next turn reads
        self._num_repeated = 0  # tokens of it that only repeat what was said before
        self._is_over = False

    def reset(self, seed: int, item_id: str | int | None) -> dict[str, Any]:
        env = self._made()
        observation, info = env.reset(seed=seed, options=None if item_id in (None, "") else {"item_id": item_id})
        self._ids, self._observation = observation.tolist(), observation.tolist()
        self._turns, self._num_repeated, self._is_over = [], 0, False
        self._record = {
            "env_id": env.spec.id,
            "item_id": info.get("item_id", item_id or None),
            "split": self._env_config.get("split"),
            "episode_id": "hub",
            "agent_id": AGENT,
            "max_episode_steps": self._horizon,
            "seed": seed,
            "end_reason": "",
            "error": None,
        }
        return self._state(info)

    def act(self, text: str) -> dict[str, Any]:
        if len(text) > MAX_ACTION_CHARS:
            raise ConfigError(f"hub: an action has at most {MAX_ACTION_CHARS} characters; got {len(text)}.")
        action = self._playing().encode_action(text)
        return self._step(action, np.zeros(len(action), np.float32))

    def expert(self) -> dict[str, Any]:
        try:
            action = self._playing().get_wrapper_attr("expert_action")()
        except (AttributeError, NotImplementedError) as error:
            raise ConfigError(f"hub: {self._env_id} has no expert.") from error
        return self.act(action)

    def model(self, temperature: float) -> dict[str, Any]:
        from rllm_gym.types import CompletionRequest, SamplingParams

        env, engine = self._playing(), self._engine or self._load_engine()
        room = engine.max_context_tokens - len(self._ids)
        if room < 1:
            raise ConfigError(f"hub: the model's context of {engine.max_context_tokens} tokens is full.")
        params = SamplingParams(min(MAX_NEW_TOKENS, room), temperature)
        engine.submit(CompletionRequest("hub", self._ids, env.get_wrapper_attr("stop_ids"), params, len(self._turns)))
        while not (finished := engine.step()):
            pass
        return self._step(finished[0].token_ids, finished[0].logp)

    def picture(self) -> bytes | None:
        """Return a picture of the environment as PNG; None where it draws none."""
        if "rgb_array" not in self._env.metadata.get("render_modes", ()):
            return None
        import io

        from PIL import Image

        buffer = io.BytesIO()
        Image.fromarray(self._env.unwrapped.render()).save(buffer, "PNG")
        return buffer.getvalue()

    def close(self) -> None:
        if self._env is not None:
            self._env.close()
        self._model_folder.cleanup()

    def _made(self) -> Any:
        if self._env is None:
            from rllm_gym.rollout.environments import EnvironmentSpec, make_token_env
            from rllm_gym.tokens import chat_tokenizer
            from rllm_gym.viewer.hub_environments import draws_pictures

            chat = chat_tokenizer(self._tokenizer())
            keywords = self._env_config
            if draws_pictures(self._env_id):
                keywords = {"render_mode": "rgb_array", **keywords}
            env = make_token_env(EnvironmentSpec(self._env_id, self._env_id, keywords), chat)
            if hasattr(env, "possible_agents"):
                env.close()
                raise ConfigError(f"hub: plays environments of one agent; {self._env_id} has several.")
            self._env = env
        return self._env

    def _playing(self) -> Any:
        if not self._record:
            raise ConfigError("hub: begin a task first.")
        if self._is_over:
            raise ConfigError("hub: the episode is over. Begin another one.")
        return self._env

    def _step(self, action: TokenIds, logp: Logps) -> dict[str, Any]:
        number = len(self._turns)
        sample = self._turns[-1].sample + self._is_rewritten if self._turns else 0
        turn = Turn(np.asarray(self._observation, np.int64), action, logp, 0, env_step=number, sample=sample)
        self._turns.append(turn)
        try:
            observation, reward, terminated, truncated, info = self._env.step(action)
        except BaseException as error:  # as in training: the episode has failed, whatever it is
            said = {"role": "assistant", "content": self._env.chat.decode_action(action.tolist())}
            messages = [*self._record["messages"], said]
            self._record.update(messages=messages, end_reason="error", error=describe(error), is_success=None)
            self._is_over, self._observation, self._num_repeated = True, [], 0
            return self._with_turns()
        turn.reward = float(reward)
        turn.take_info(info)
        self._observation = observation.tolist()
        self._num_repeated = info.get("num_repeated_tokens", 0)
        self._ids = self._observation if self._is_rewritten else [*self._ids, *action.tolist(), *self._observation]
        is_at_horizon = self._horizon is not None and len(self._turns) >= self._horizon
        end = "terminated" if terminated else "truncated" if truncated else "horizon" if is_at_horizon else ""
        self._record["end_reason"], self._is_over = end, bool(end)
        return self._state(info)

    @property
    def _is_rewritten(self) -> bool:
        """Whether the next turn reads a prompt that was put together anew."""
        return self._num_repeated > 0

    def _with_turns(self) -> dict[str, Any]:
        """Return the record with its turns, as they are stored."""
        names = ("policy_version", "env_step", "reward", "is_invalid_action", "sample", "kind", "attempt", "rewards")
        turns = [
            {
                "observation_ids": turn.observation_ids.tolist(),
                "action_ids": turn.action_ids.tolist(),
                "logp": turn.logp.tolist(),
                **{name: getattr(turn, name) for name in names},
            }
            for turn in self._turns
        ]
        return {**self._record, "turns": turns, "final_observation_ids": self._observation[self._num_repeated :]}

    def _state(self, info: Mapping[str, Any]) -> dict[str, Any]:
        from pydantic_core import to_jsonable_python

        known = {*NOT_STORED, "is_success", "category", "item_id", "is_invalid_action"}
        rest = {}
        for key, value in info.items():
            if key not in known:
                with contextlib.suppress(TypeError, ValueError):
                    rest[key] = to_jsonable_python(value)
        self._record["messages"] = info["messages"]
        self._record["is_success"] = None if info.get("is_success") is None else bool(info["is_success"])
        self._record["category"] = info.get("category")
        self._record["info"] = rest
        return self._with_turns()

    def _tokenizer(self) -> str | None:
        if not self._policy:
            return None
        folder = Path(self._policy)
        from rllm_gym.viewer.policies import is_checkpoint

        return str(self._exported()) if is_checkpoint(folder) else self._policy

    def _exported(self) -> Path:
        """Return a model folder with a checkpoint's policy."""
        folder = Path(self._model_folder.name) / "model"
        if not folder.exists():
            from rllm_gym.evaluation.export import export_policy

            export_policy(Path(self._policy), folder)
        return folder

    def _load_engine(self) -> Any:
        if not self._policy:
            raise ConfigError("hub: this session has no model. Begin another one with a model.")
        from rllm_gym.models import resolve_base_model
        from rllm_gym.rollout.engines.transformers import TransformersEngine
        from rllm_gym.viewer.policies import is_checkpoint

        model = self._exported() if is_checkpoint(Path(self._policy)) else resolve_base_model(self._policy)
        self._engine = TransformersEngine(str(model))
        return self._engine
