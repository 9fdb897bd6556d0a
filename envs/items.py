"""Numbered tasks ("items"): the splits that they are drawn from, and what lists of them may hold."""

from __future__ import annotations

import inspect
import json
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias, TypedDict, get_args, get_type_hints, is_typeddict

import gymnasium
import numpy as np

from rllm_gym.errors import ConfigError, nearest
from rllm_gym.strangers_files import read_text

SPLITS = ("train", "eval", "all")
RESERVED_SPLITS = ("all", "env_runners")  # every item; and all splits' metrics together, in RLlib's results
MAX_ITEM_BYTES = 1 << 28  # of a file of item ids

FORMER_HOOKS = ("_act", "_reset_item", "_split_indices")  # public now, without the underscore

# A list of item ids, or the path of a file with some.
ItemIds: TypeAlias = Sequence[str | int] | str | Path


class ItemOptions(TypedDict, total=False):
    """The keywords of every environment with items; `TextEnv` says what each is."""

    split: str | None
    item_ids: ItemIds | None
    splits: Mapping[str, ItemIds] | None
    system_prompt: str | None


class TextOptions(ItemOptions, total=False):
    """The keywords of every `TextEnv`."""

    render_mode: str | None


def keywords_of(create: Callable[..., Any]) -> list[str] | None:
    """Return the keywords that an environment's class or function lists, those in an `Unpack` too; None for any."""
    known: list[str] = []
    for parameter in inspect.signature(create).parameters.values():
        if parameter.kind is not parameter.VAR_KEYWORD:
            known.append(parameter.name)
            continue
        try:
            hints = get_type_hints(create.__init__ if isinstance(create, type) else create)  # type: ignore[misc]
        except NameError:  # it is annotated for type checkers alone
            return None
        unpacked = get_args(hints.get(parameter.name))
        if not unpacked or not is_typeddict(unpacked[0]):
            return None
        known += get_type_hints(unpacked[0])
    return known


def restrict(rule: str, option: Any, known: Sequence[Any]) -> frozenset[Any]:
    """Return the values that an option lets an environment draw from: all that are known, one of these, or some.

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


class HasItems:
    """The numbered tasks of an environment, from which a reset draws one.

    A subclass sets `name` and `num_items`, writes `split_indices`, and calls `_choose_items` when it is made and
    `_draw_item` in its reset. `split`, `item_ids` and `splits` are as `TextEnv` has them.
    """

    name: str = ""
    num_items: int = 0
    # Its own keywords that only choose among what is installed, so that a panel or the page may set them.
    safe_options: Sequence[str] = ()
    np_random: np.random.Generator
    _index: int | None = None

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for name in FORMER_HOOKS:
            new = name.removeprefix("_")
            if name in vars(cls) and new not in vars(cls):
                setattr(cls, new, vars(cls)[name])
                warnings.warn(
                    f"{cls.__name__}: {name} is the former name of {new}, and goes with the next release. Rename it.",
                    FutureWarning,
                    stacklevel=2,
                )

    # What an environment writes.

    def split_indices(self, split: str) -> Sequence[int]:
        """Return the items of "train", "eval" or "all", in order, after the environment's own filters."""
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

    def _choose_items(self, split: str | None, item_ids: ItemIds | None, splits: Mapping[str, ItemIds] | None) -> None:
        """Take the options that say what a plain reset draws from."""
        self.split = split if split is not None else "train" if item_ids is None else "all"
        self._selection = self._select(item_ids, self._read_splits(splits))

    def _asked_item(self, options: Any, others: Sequence[str] = ()) -> int | None:
        """Return the item that a reset's options ask for; None where they ask for none.

        Args:
            others: what else the options may hold.
        """
        options = options or {}
        if not isinstance(options, dict):
            raise ConfigError(
                f'{self._who}: reset options must be a dictionary, like {{"item_id": 17}}; got {options!r}. Correct it.'
            )
        for key in options.keys() - {"item_id", *others}:
            known = " and ".join(f'"{name}"' for name in ("item_id", *others))
            verb = "options are" if others else "option is"
            raise ConfigError(f"{self._who}: the only reset {verb} {known}; got {key!r}. Remove it.")
        item_id = options.get("item_id")
        return None if item_id is None else self._parse_item_id(item_id)

    def _draw_item(self, asked: int | None) -> int:
        """Return the item of an episode, drawing one number whether it is needed or not."""
        # A float costs one draw of the generator whatever the number of items; bounded integers cost a varying number.
        drawn = self._selection[int(self.np_random.random() * len(self._selection))]
        self._index = drawn if asked is None else asked
        return self._index

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
            selection = tuple(self.split_indices(self.split))
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
        """Return the indices in each split of `splits`, after the environment's own filters."""
        if splits is None:
            return {}
        if not isinstance(splits, Mapping) or not splits:
            raise ConfigError(
                f"{self._who}: splits must map names to lists, files or splits; got {splits!r}. "
                "Write {train: ..., eval: ...}, or leave it out."
            )
        playable = set(self.split_indices("all"))
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
            return self.split_indices(ids)
        if isinstance(ids, str) and ids.isidentifier() and not Path(ids).exists():
            raise ConfigError(
                f"{self._who}: a split must be a list of ids, a file of ids, or one of {', '.join(SPLITS)}; got "
                f"{ids!r} for {name!r} in splits. Did you mean {nearest(ids, SPLITS)!r}?"
            )
        return map(self._parse_item_id, self._read_item_ids(f"splits: {name}", ids))

    def _check_disjoint(self, splits: Mapping[str, tuple[int, ...]]) -> None:
        train = set(splits["train"] if "train" in splits else self.split_indices("train"))
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
                text = read_text(Path(item_ids).expanduser(), max_bytes=MAX_ITEM_BYTES).strip()
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
