"""TextEnv: the base of every text environment, and the parsing of what models write."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from rllm_gym.envs.text_space import UnicodeText
from rllm_gym.errors import ConfigError, nearest

SPLITS = ("train", "eval", "all")
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


def restrict(rule: str, option: Any, known: Sequence[Any]) -> frozenset[Any]:
    """Return what an option lets an environment draw from: all that is known, one of these, or some.

    Args:
        rule: the option's rule for the message, like "TextCraftEnv: depth must be 1, 2, 3 or 4, or a list of these".
        option: what the caller gave; None is all.
        known: strings or integers.

    Raises:
        ConfigError: it holds something else, or nothing.
    """
    if option is None:
        return frozenset(known)
    values = [option] if isinstance(option, str) or not isinstance(option, Iterable) else list(option)
    for value in values:
        if isinstance(value, bool | float) or value not in known:  # 2.0 equals 2
            hint = f"Did you mean {nearest(value, known)!r}?" if isinstance(known[0], str) else "Correct it."
            raise ConfigError(f"{rule}; got {option!r}. {hint}")
    if not values:
        raise ConfigError(f"{rule}; got {option!r}. Leave it out for all of them.")
    return frozenset(values)


class TextEnv(gymnasium.Env[str, str]):
    """An environment of numbered tasks ("items") that is read and acted on in plain text.

    A subclass sets `name`, `num_items` and `default_system_prompt`, and writes `_split_indices`, `_reset_item`,
    `category`, `step` and `expert_action`; it sets `self.is_success` when the task is solved and returns `self._info()`
    as info. It takes every random number from `self.np_random`, and has no turn limit of its own.

    A reset draws one number for the item whether it needs it or not, so that `reset(seed=s)` and
    `reset(seed=s, options={"item_id": the item it drew})` give the same episode, whatever the split.

    Info keys: `item_id` (like "textcraft_17"), `category` (str, a label to report success by), `is_success` (bool).

    Args:
        split: "train", "eval" or "all": what a reset without an item id draws from. None is "train", or "all" where
            `item_ids` are given.
        item_ids: restricts the draws further: a list of item ids ("textcraft_17" or 17), or the path of a JSON or JSON
            Lines file with such ids or with {"item_id": "textcraft_17"} objects.
        system_prompt: replaces the environment's instruction; "" means that there is none.

    Raises:
        ConfigError: an unknown split or item id, a file that cannot be read, or nothing left to draw from.
    """

    name: str = ""
    num_items: int = 0
    default_system_prompt: str = ""

    def __init__(
        self,
        *,
        split: str | None = None,
        item_ids: Sequence[str | int] | str | Path | None = None,
        system_prompt: str | None = None,
    ) -> None:
        self.observation_space = UnicodeText(MAX_TEXT_CHARS)
        self.action_space = UnicodeText(MAX_TEXT_CHARS)
        if not isinstance(system_prompt, str | None):
            raise ConfigError(
                f'{self._who}: system_prompt must be a text; got {system_prompt!r}. Put it in quotes; "" is none.'
            )
        self.system_prompt = self.default_system_prompt if system_prompt is None else system_prompt
        self.split = split if split is not None else "train" if item_ids is None else "all"
        self.is_success = False
        self._index: int | None = None
        self._selection = self._select(item_ids)

    # What an environment writes.

    def _split_indices(self, split: str) -> Sequence[int]:
        """Return the items of "train", "eval" or "all", in order, after the environment's own filters."""
        raise NotImplementedError

    def _reset_item(self, index: int) -> str:
        """Begin item `index` and return its first observation."""
        raise NotImplementedError

    @property
    def category(self) -> str:
        """The label of the present item, like "depth_1"."""
        raise NotImplementedError

    def expert_action(self) -> str:
        """Return what an expert would write next; it changes nothing, and never raises after a reset."""
        raise NotImplementedError(f"{type(self).__name__} has no expert.")

    # What it gets.

    @property
    def item_ids(self) -> list[str]:
        """The items that a plain reset draws from."""
        return [self._item_id(index) for index in self._selection]

    @property
    def index(self) -> int:
        """The number of the present item."""
        if self._index is None:
            raise gymnasium.error.ResetNeeded(f"{type(self).__name__}: call reset() first.")
        return self._index

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Begin an episode.

        Args:
            seed: seeds `np_random`, from which everything random of the episode comes.
            options: {"item_id": "textcraft_17"} or {"item_id": 17} asks for an item, of whatever split.

        Raises:
            ConfigError: an unknown option or item id.
        """
        options = options or {}
        if not isinstance(options, dict):
            raise ConfigError(
                f'{self._who}: reset options must be a dictionary, like {{"item_id": 17}}; got {options!r}. Correct it.'
            )
        for key in options.keys() - {"item_id"}:
            raise ConfigError(f'{self._who}: the only reset option is "item_id"; got {key!r}. Remove it.')
        item_id = options.get("item_id")
        asked = None if item_id is None else self._parse_item_id(item_id)
        super().reset(seed=seed)
        # A float costs one draw of the generator whatever the number of items; bounded integers cost a varying number.
        drawn = self._selection[int(self.np_random.random() * len(self._selection))]
        self._index = drawn if asked is None else asked
        self.is_success = False
        return self._reset_item(self._index), self._info()

    def _info(self) -> dict[str, Any]:
        return {"item_id": self._item_id(self.index), "category": self.category, "is_success": self.is_success}

    @property
    def _who(self) -> str:
        return type(self).__name__

    def _item_id(self, index: int) -> str:
        return f"{self.name}_{index}"

    def _parse_item_id(self, item_id: Any) -> int:
        digits = str(item_id).removeprefix(f"{self.name}_")
        # Python refuses to convert thousands of digits.
        if digits.isascii() and digits.isdigit() and len(digits) < 16 and int(digits) < self.num_items:
            return int(digits)
        raise ConfigError(
            f"{self._who}: an item id is a number from 0 to {self.num_items - 1}, with or without "
            f'"{self.name}_" before it; got {item_id!r}. Choose one of these.'
        )

    def _select(self, item_ids: Sequence[str | int] | str | Path | None) -> tuple[int, ...]:
        if self.split not in SPLITS:
            raise ConfigError(
                f"{self._who}: split must be one of {', '.join(SPLITS)}; got {self.split!r}. "
                f"Did you mean {nearest(self.split, SPLITS)!r}?"
            )
        selection = tuple(self._split_indices(self.split))
        if item_ids is not None:
            in_split = set(selection)
            selection = tuple(i for i in map(self._parse_item_id, self._read_item_ids(item_ids)) if i in in_split)
        if not selection:
            raise ConfigError(
                f"{self._who}: some item must be left to draw from; got none from split={self.split!r} and the other "
                "filters together. Widen them."
            )
        return selection

    def _read_item_ids(self, item_ids: Sequence[str | int] | str | Path) -> Sequence[Any]:
        rule = "item_ids must be a list of ids, or a JSON or JSON Lines file that holds some"
        rows: Any = item_ids
        if isinstance(item_ids, (str, Path)):
            try:
                text = Path(item_ids).expanduser().read_text(encoding="utf-8-sig").strip()
                lines = filter(str.strip, text.split("\n"))
                rows = json.loads(text if text.startswith("[") else f"[{','.join(lines)}]")
            except (OSError, ValueError) as e:
                raise ConfigError(
                    f"{self._who}: {rule}; got {str(item_ids)!r}, which cannot be read ({e}). Correct it."
                ) from e
        if not isinstance(rows, Sequence | np.ndarray) or isinstance(rows, str):
            raise ConfigError(f"{self._who}: {rule}; got {item_ids!r} ({type(rows).__name__}). Correct it.")
        return [row.get("item_id", row) if isinstance(row, dict) else row for row in rows]
