"""TextEnv: the base of every text environment, and the parsing of what models write."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from textwrap import indent
from typing import Any, NamedTuple, TypeAlias

import gymnasium
import numpy as np
import numpy.typing as npt

from rllm_gym.envs.agents.functions import Function
from rllm_gym.envs.text_space import UnicodeText
from rllm_gym.errors import ConfigError, nearest

SPLITS = ("train", "eval", "all")
RESERVED_SPLITS = ("all", "env_runners")  # every item; and all splits' metrics together, in RLlib's results
MAX_ITEM_BYTES = 1 << 28  # of a file of item ids
MAX_TEXT_CHARS = 1 << 16  # longest text of an environment; web pages and long documents are cut by their environments

# A list of item ids, or the path of a file with some.
ItemIds: TypeAlias = Sequence[str | int] | str | Path


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


class StepResult(NamedTuple):
    """What an environment makes of an action.

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


_TO_WRITE = ("_split_indices", "_reset_item", "_act", "category")


class TextEnv(gymnasium.Env[str, str]):
    """An environment of numbered tasks ("items") that is read and acted on in plain text.

    A subclass sets `name`, `num_items` and `default_system_prompt`, and writes `_split_indices`, `_reset_item`, `_act`,
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

    name: str = ""
    num_items: int = 0
    default_system_prompt: str = ""
    # For agents that write in another format than the environment's own: the part of the default system prompt that is
    # about the world alone, what a turn looks like, with `{thought}` and `{action}`, and what can be done.
    introduction: str = ""
    turn_form: str = "{action}"
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
        self.split = split if split is not None else "train" if item_ids is None else "all"
        self.is_success = False
        self.is_invalid_action = False
        self._index: int | None = None
        self._selection = self._select(item_ids, self._read_splits(splits))

    # What an environment writes.

    def _split_indices(self, split: str) -> Sequence[int]:
        """Return the items of "train", "eval" or "all", in order, after the environment's own filters."""
        raise NotImplementedError

    def _reset_item(self, index: int) -> str:
        """Begin item `index` and return its first observation."""
        raise NotImplementedError

    def _act(self, action: str) -> StepResult:
        """Carry out a model's text and return what comes of it. A text that does not parse is an ordinary step."""
        raise NotImplementedError

    @property
    def category(self) -> str:
        """The label of the present item, like "depth_1"."""
        raise NotImplementedError

    def expert_action(self) -> str:
        """Return what an expert would write next; it changes nothing, and never raises after a reset."""
        raise NotImplementedError(f"{type(self).__name__} has no expert.")

    def _picture(self) -> npt.NDArray[np.uint8]:
        """Return what `render` returns where the metadata have "rgb_array"."""
        raise NotImplementedError

    def named_item(self, entry: Any) -> int | None:
        """Return the item that an entry of a list says by a name, and not by a number; None where it says none."""
        return None

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
        self.is_success = self.is_invalid_action = False
        observation = self._reset_item(self._index)
        if self.render_mode == "ansi":
            before = [self.system_prompt, *(said for turn in self.preamble for said in turn)]
            self._transcript = [*filter(None, before), observation]
        return observation, self._info()

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Take what the model wrote; info is that of the class docstring."""
        result = self._act(action)
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

    @property
    def _who(self) -> str:
        return type(self).__name__

    def _item_id(self, index: int) -> str:
        return f"{self.name}_{index}"

    def _parse_item_id(self, item_id: Any) -> int:
        named = self.named_item(item_id)
        if named is not None:
            return named
        digits = str(item_id).removeprefix(f"{self.name}_")
        # Python refuses to convert thousands of digits.
        if digits.isascii() and digits.isdigit() and len(digits) < 16 and int(digits) < self.num_items:
            return int(digits)
        if digits.isascii() and digits.isdigit():
            close = self._item_id(self.num_items - 1)
        else:
            close = nearest(item_id, map(self._item_id, range(self.num_items)))
        raise ConfigError(
            f"{self._who}: an item id is a number from 0 to {self.num_items - 1}, with or without "
            f'"{self.name}_" before it; got {item_id!r}. Did you mean {close!r}?'
        )

    def _select(self, item_ids: ItemIds | None, splits: Mapping[str, tuple[int, ...]]) -> tuple[int, ...]:
        known = dict.fromkeys((*SPLITS, *splits))
        if self.split not in known:
            raise ConfigError(
                f"{self._who}: split must be one of {', '.join(known)}; got {self.split!r}. "
                f"Did you mean {nearest(self.split, known)!r}?"
            )
        selection = splits.get(self.split)
        if selection is None:
            selection = tuple(self._split_indices(self.split))
        if splits:
            self._check_disjoint({**splits, self.split: selection})
        if item_ids is not None:
            if splits:
                raise ConfigError(
                    f"{self._who}: item_ids and splits exclude each other; got both. Move the list into splits."
                )
            in_split = set(selection)
            parsed = map(self._parse_item_id, self._read_item_ids("item_ids", item_ids))
            selection = tuple(index for index in parsed if index in in_split)
        if not selection:
            raise ConfigError(
                f"{self._who}: some item must be left to draw from; got none from split={self.split!r} and the other "
                "filters together. Widen them."
            )
        return selection

    def _read_splits(self, splits: Mapping[str, ItemIds] | None) -> dict[str, tuple[int, ...]]:
        """Return what each split of `splits` holds, after the environment's own filters."""
        if splits is None:
            return {}
        if not isinstance(splits, Mapping) or not splits:
            raise ConfigError(
                f"{self._who}: splits must map names to lists, files or splits; got {splits!r}. "
                "Write {train: ..., eval: ...}, or leave it out."
            )
        playable = set(self._split_indices("all"))
        found = {}
        for name, ids in splits.items():
            if not isinstance(name, str) or not name or "/" in name or name in RESERVED_SPLITS:
                raise ConfigError(
                    f"{self._who}: the name of a split must be a text without a slash, and none of "
                    f"{', '.join(RESERVED_SPLITS)}; got {name!r} in splits. Rename it."
                )
            indices = dict.fromkeys(i for i in self._split_of(name, ids) if i in playable)
            if not indices:
                raise ConfigError(
                    f"{self._who}: a split must hold some item; got none for {name!r} in splits, after the other "
                    "filters. Add some, or leave the split out."
                )
            found[name] = tuple(indices)
        return found

    def _split_of(self, name: str, ids: ItemIds) -> Iterable[int]:
        if isinstance(ids, str) and ids in SPLITS:
            return self._split_indices(ids)
        if isinstance(ids, str) and ids.isidentifier() and not Path(ids).exists():
            raise ConfigError(
                f"{self._who}: a split must be a list of ids, a file of ids, or one of {', '.join(SPLITS)}; got "
                f"{ids!r} for {name!r} in splits. Did you mean {nearest(ids, SPLITS)!r}?"
            )
        return map(self._parse_item_id, self._read_item_ids(f"splits: {name}", ids))

    def _check_disjoint(self, splits: Mapping[str, tuple[int, ...]]) -> None:
        train = set(splits["train"] if "train" in splits else self._split_indices("train"))
        for name, indices in splits.items():
            shared = [index for index in indices if index in train]
            if shared and name not in ("train", "all"):
                raise ConfigError(
                    f"{self._who}: splits must keep what is trained on apart; got {self._item_id(shared[0])!r}"
                    f"{f', the first of {len(shared)} items,' if shared[1:] else ''} both in train and in {name}. "
                    f"Say in splits what train and {name} hold."
                )

    def _read_item_ids(self, what: str, item_ids: ItemIds) -> Sequence[Any]:
        rule = f"{what} must be a list of ids, or a JSON or JSON Lines file that holds some"
        rows: Any = item_ids
        if isinstance(item_ids, (str, Path)):
            try:
                text = _text_of(Path(item_ids).expanduser()).strip()
                lines = filter(str.strip, text.split("\n"))
                rows = json.loads(text if text.startswith("[") else f"[{','.join(lines)}]")
            except (OSError, ValueError, RecursionError) as e:
                raise ConfigError(
                    f"{self._who}: {rule}; got {str(item_ids)!r}, which cannot be read ({e}). Correct it."
                ) from e
        if not isinstance(rows, Sequence | np.ndarray) or isinstance(rows, str):
            raise ConfigError(f"{self._who}: {rule}; got {item_ids!r} ({type(rows).__name__}). Correct it.")
        return [
            row.get("item_id", row) if isinstance(row, dict) and self.named_item(row) is None else row for row in rows
        ]


def _text_of(file: Path) -> str:
    if file.exists() and not file.is_file():
        raise OSError("it is no regular file")
    if file.stat().st_size > MAX_ITEM_BYTES:
        raise OSError(f"it has more than {MAX_ITEM_BYTES:,} bytes")
    return file.read_text(encoding="utf-8-sig")
