"""The process of one hub session: an environment, and perhaps a model, which nothing else waits for.

An environment is foreign code that may hang or die, and so may a browser or a virtual machine below it: in a process
of its own it can be ended at any time. It is played at the level of tokens, as in training, so that what comes of it is
the same record.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from rllm_gym.data.records import make_records
from rllm_gym.errors import ConfigError, EnvError, describe
from rllm_gym.rollout.play_by_hand import PlayByHand
from rllm_gym.types import (
    AGENT,
    CompletionRequest,
    EndReason,
    Logps,
    SamplingParams,
    TaskGroup,
    TokenIds,
)

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
        self._hand: PlayByHand | None = None
        self._chat: Any = None
        self._engine: Any = None
        self._model_folder = tempfile.TemporaryDirectory(prefix="rllm_gym_view_")
        self._num_tasks = 0

    def reset(self, seed: int, item_id: str | int | None) -> dict[str, Any]:
        if self._hand is None or self._hand.request is not None:  # an episode that goes on is left
            if self._hand is not None:
                self._hand.close()
            self._hand = PlayByHand(self._make_env, horizon=self._horizon)
        self._num_tasks += 1
        episode = self._hand.begin(TaskGroup((0, 0, self._num_tasks), None if item_id == "" else item_id, 1, seed=seed))
        if episode.error is not None and not episode.streams:
            raise EnvError(episode.error)
        return self._record()

    def act(self, text: str) -> dict[str, Any]:
        if len(text) > MAX_ACTION_CHARS:
            raise ConfigError(f"hub: an action has at most {MAX_ACTION_CHARS} characters; got {len(text)}.")
        self._request()
        assert self._hand is not None
        ids = np.asarray(self._hand.call(lambda env: env.get_wrapper_attr("encode_action")(text)), np.int64)
        return self._take_turn(ids, np.zeros(len(ids), np.float32))

    def expert(self) -> dict[str, Any]:
        self._request()
        assert self._hand is not None
        if (action := self._hand.call(_expert_action)) is None:
            raise ConfigError(f"hub: {self._env_id} has no expert.")
        return self.act(action)

    def model(self, temperature: float) -> dict[str, Any]:
        request, engine = self._request(), self._engine or self._load_engine()
        room = engine.max_context_tokens - len(request.prompt_ids)
        if room < 1:
            raise ConfigError(f"hub: the model's context of {engine.max_context_tokens} tokens is full.")
        engine.submit(replace(request, params=SamplingParams(min(MAX_NEW_TOKENS, room), temperature)))
        while not (finished := engine.step()):
            pass
        return self._take_turn(finished[0].token_ids, finished[0].logp)

    def picture(self) -> bytes | None:
        """Return a picture of the environment as PNG; None where it draws none."""
        return None if self._hand is None else self._hand.call(_picture)

    def close(self) -> None:
        if self._hand is not None:
            self._hand.close()
        self._model_folder.cleanup()

    def _make_env(self) -> Any:
        from rllm_gym.rollout.environments import EnvironmentSpec, make_token_env
        from rllm_gym.tokens import chat_tokenizer
        from rllm_gym.viewer.hub_environments import draws_pictures

        chat_options, token_options = self._run_options()
        self._chat = chat_tokenizer(self._tokenizer(), **chat_options)
        keywords = self._env_config
        if draws_pictures(self._env_id):
            keywords = {"render_mode": "rgb_array", **keywords}
        env = make_token_env(EnvironmentSpec(self._env_id, self._env_id, keywords), self._chat, **token_options)
        if hasattr(env, "possible_agents"):
            env.close()
            raise ConfigError(f"hub: plays environments of one agent; {self._env_id} has several.")
        return env

    def _request(self) -> CompletionRequest:
        """Return the prompt that waits for an action."""
        if self._hand is None:
            raise ConfigError("hub: begin a task first.")
        if self._hand.request is None:
            raise ConfigError("hub: the episode is over. Begin another one.")
        return self._hand.request

    def _take_turn(self, token_ids: TokenIds, logp: Logps) -> dict[str, Any]:
        assert self._hand is not None
        episode = self._hand.act(token_ids, logp)
        if episode.error is not None:  # the environment's words end before the action that it failed at
            said = {"role": "assistant", "content": self._chat.decode_action(token_ids.tolist())}
            stream = episode.streams[AGENT]
            stream.messages = [*stream.messages, said]
        return self._record()

    def _record(self) -> dict[str, Any]:
        """Return the record of the episode as it is stored; its `end_reason` is empty while it goes on."""
        assert self._hand is not None
        episode = self._hand.episode
        shown = replace(episode, episode_id="hub", end_reason=episode.end_reason or EndReason.HORIZON)
        [record] = make_records(
            shown,
            env_version="",
            train_step=None,
            max_episode_steps=self._horizon,
            split=self._env_config.get("split"),
        )
        return {
            **record.model_dump(mode="json"),
            "end_reason": str(episode.end_reason or ""),
            "is_success": None if episode.error else record.is_success,
            "final_observation_ids": self._hand.observation_ids.tolist(),
        }

    def _tokenizer(self) -> str | None:
        if not self._policy:
            return None
        folder = Path(self._policy)
        from rllm_gym.viewer.policies import is_checkpoint

        return str(self._exported()) if is_checkpoint(folder) else self._policy

    def _run_options(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return how a checkpoint's run renders conversations, and the options of its token level.

        Its template is in the exported folder; a session is a process of its own already.
        """
        from rllm_gym.viewer.policies import is_checkpoint

        if not self._policy or not is_checkpoint(Path(self._policy)):
            return {}, {}
        from rllm_gym.checkpoints import read_config

        _, config = read_config(Path(self._policy))
        chat_options = {name: value for name, value in config.chat_options.items() if name != "chat_template"}
        return chat_options, {**config.token_options, "in_process": False}

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


def _expert_action(env: Any) -> str | None:
    """Return the expert's action; None where the environment has none."""
    try:
        return env.get_wrapper_attr("expert_action")()
    except (AttributeError, NotImplementedError):
        return None


def _picture(env: Any) -> bytes | None:
    if "rgb_array" not in env.metadata.get("render_modes", ()):
        return None
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(env.unwrapped.render()).save(buffer, "PNG")
    return buffer.getvalue()
