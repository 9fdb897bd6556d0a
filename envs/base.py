"""TextEnv: the base of every text environment, and the parsing of what models write."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from textwrap import indent
from typing import Any, NamedTuple

import gymnasium
import numpy as np
import numpy.typing as npt

from rllm_gym.envs.agents.functions import Function
from rllm_gym.envs.items import HasItems, ItemIds
from rllm_gym.envs.text_space import UnicodeText
from rllm_gym.errors import ConfigError

MAX_TEXT_CHARS = 1 << 16  # longest text of an environment; web pages and long documents are cut by their environments


def parse_action(text: str) -> str:
    """Return the action in a model's text: what follows the last "Action:", or the whole text where there is none.

    White space around it is dropped.

    Raises:
        TypeError: `text` is not a string, as when token ids reach a text environment.
    """
    if not isinstance(text, str):
        raise TypeError(
            f"parse_action: an action is a string; got {type(text).__name__}. "
            'Make the environment with obs_type="token" to step it with token ids.'
        )
    return text.rpartition("Action:")[2].strip()


class StepResult(NamedTuple):
    """The outcome of an action.

    Args:
        reply: the next observation.
        reward: for this action.
        is_over: the environment ends the episode.
        is_invalid: the environment could not act on the action: it did not parse, or names no possible action.
        is_truncated: a bound of the environment's own cuts the episode short.
    """

    reply: str
    reward: float
    is_over: bool
    is_invalid: bool
    is_truncated: bool = False


_TO_WRITE = ("split_indices", "reset_item", "act", "category")


class TextEnv(HasItems, gymnasium.Env[str, str]):
    """An environment of numbered tasks ("items") that is read and acted on in plain text.

    A subclass sets `name`, `num_items` and `default_system_prompt`, and writes `split_indices`, `reset_item`, `act`,
    `category` and `expert_action`; it sets `self.is_success` when the task is solved. It takes every random number from
    `self.np_random`, and has no turn limit of its own.

    A reset draws one number for the item whether it needs it or not, so that `reset(seed=s)` and
    `reset(seed=s, options={"item_id": the item it drew})` give the same episode, whatever the split.

    Info keys: `item_id` (like "textcraft_17"), `category` (str, a label to report success by), `is_success` (bool),
    `is_invalid_action` (bool, the environment could not act on the last action; False at reset).

    Args:
        split: "train", "eval", "all" or a name in `splits`: what a reset without an item id draws from. None is
            "train", or "all" where `item_ids` are given.
        item_ids: restricts the draws further: a list of item ids ("textcraft_17", 17, or a name where items have names,
            like "minecraft:beacon"), or the path of a JSON or JSON Lines file with such ids or with
            {"item_id": "textcraft_17"} objects. A name in an object counts before its number.
        splits: other splits than the environment's own, or more: {"train": ..., "eval": ..., "any_name": ...}, each a
            list or a file as for `item_ids`, or "train", "eval" or "all" for the environment's own. No split but
            "train" may have an item of "train", which is the environment's own where it is left out.
        system_prompt: replaces the environment's instruction; "" means that there is none.
        render_mode: "ansi" lets `render` return the episode so far as text: what the environment says, and between it
            what the model wrote, each line of it behind "> ". Some environments have "rgb_array", too.

    Raises:
        ConfigError: an unknown split, item id or render mode, a file that cannot be read, a split with an item of
            "train", or nothing left to draw from; or the subclass lacks something.
    """

    default_system_prompt: str = ""
    # For agents that write in another format than the environment's own: the part of the default system prompt that is
    # about the world alone, what a turn looks like, with `{thought}` and `{action}`, and what can be done.
    introduction: str = ""
    turn_form: str = "{action}"
    stop: tuple[str, ...] = ()
    functions: Sequence[Function] = ()
    # What is said before the first observation, and what the policy is taken to have answered to it.
    preamble: Sequence[tuple[str, str]] = ()
    metadata = {"render_modes": ["ansi"], "render_fps": 4}  # noqa: RUF012  (Gymnasium's form)

    def __init__(
        self,
        *,
        split: str | None = None,
        item_ids: ItemIds | None = None,
        splits: Mapping[str, ItemIds] | None = None,
        system_prompt: str | None = None,
        render_mode: str | None = None,
    ) -> None:
        self._check_subclass()
        self.observation_space = UnicodeText(MAX_TEXT_CHARS)
        self.action_space = UnicodeText(MAX_TEXT_CHARS)
        if not isinstance(system_prompt, str | None):
            raise ConfigError(
                f'{self._who}: system_prompt must be a text; got {system_prompt!r}. Put it in quotes; "" is none.'
            )
        if render_mode not in (None, *self.metadata["render_modes"]):
            modes = ", ".join(map(repr, self.metadata["render_modes"]))
            raise ConfigError(
                f"{self._who}: render_mode must be None or one of {modes}; got {render_mode!r}. Choose one of these."
            )
        self.render_mode = render_mode
        self._transcript: list[str] = []  # of the episode, with render_mode="ansi"
        self.system_prompt = self.default_system_prompt if system_prompt is None else system_prompt
        self.is_success = False
        self.is_invalid_action = False
        self._choose_items(split, item_ids, splits)

    # What an environment writes.

    def reset_item(self, index: int) -> str:
        """Begin item `index` and return its first observation."""
        raise NotImplementedError

    def act(self, action: str) -> StepResult:
        """Carry out a model's text and return what comes of it. A text that does not parse is an ordinary step."""
        raise NotImplementedError

    @property
    def category(self) -> str:
        """The label of the present item, like "depth_1"."""
        raise NotImplementedError

    def expert_action(self) -> str:
        """Return an expert's next text; it changes nothing, and never raises after a reset."""
        raise NotImplementedError(f"{type(self).__name__} has no expert.")

    def _picture(self) -> npt.NDArray[np.uint8]:
        """Return the picture that `render` returns where the metadata have "rgb_array"."""
        raise NotImplementedError

    # What it gets.

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Begin an episode.

        Args:
            seed: seeds `np_random`, from which everything random of the episode comes.
            options: {"item_id": "textcraft_17"} or {"item_id": 17} asks for an item, of whatever split.

        Raises:
            ConfigError: an unknown option or item id.
        """
        asked = self._asked_item(options)
        super().reset(seed=seed)
        index = self._draw_item(asked)
        self.is_success = self.is_invalid_action = False
        observation = self.reset_item(index)
        if self.render_mode == "ansi":
            before = [self.system_prompt, *(said for turn in self.preamble for said in turn)]
            self._transcript = [*filter(None, before), observation]
        return observation, self._info()

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Take what the model wrote, of which `MAX_TEXT_CHARS` are read; info is that of the class docstring."""
        result = self.act(action[:MAX_TEXT_CHARS] if isinstance(action, str) else action)
        if not isinstance(result, StepResult):
            raise TypeError(f"{self._who}: act must return a StepResult; got {result!r:.200}. Return one.")
        self.is_invalid_action = result.is_invalid
        if self.render_mode == "ansi":
            self._transcript += [indent(action, "> ", lambda line: True), result.reply]
        return result.reply, result.reward, result.is_over, result.is_truncated, self._info()

    def render(self) -> str | npt.NDArray[np.uint8] | None:  # type: ignore[override]
        """Return the episode so far as text, or a picture of it, as `render_mode` says; None without one."""
        if self.render_mode is None:
            return None
        if self._index is None:
            raise gymnasium.error.ResetNeeded(f"{self._who}: render comes after reset; got a render before any. Reset.")
        return "\n\n".join(self._transcript) if self.render_mode == "ansi" else self._picture()

    def _info(self) -> dict[str, Any]:
        return {
            "item_id": self._item_id(self.index),
            "category": self.category,
            "is_success": self.is_success,
            "is_invalid_action": self.is_invalid_action,
        }

    def _check_subclass(self) -> None:
        """Say what an author has forgotten."""
        missing = [key for key in _TO_WRITE if getattr(type(self), key) is getattr(TextEnv, key)]
        missing += [key for key in ("name", "num_items") if not getattr(self, key)]
        if missing:
            raise ConfigError(
                f"{self._who}: a TextEnv needs {', '.join(_TO_WRITE)}, name and num_items; got none of "
                f"{', '.join(missing)}. Write them; the docstring of TextEnv says what each is."
            )
