"""Episodes under other names: what cannot be known by heart has to be read.

A task's names are few and always mean the same, so that a small model learns answers where it should learn to copy
them from the task. Here the words of names are exchanged in a whole episode, in tasks, actions and replies alike, by
words that are drawn anew each time. As the environments treat names as names, such an episode is what an environment
with these names would have said.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable

import numpy as np

from rllm_gym.envs.textcraft.env import TextCraftEnv
from rllm_gym.envs.textcraft.recipes import display, load_book
from rllm_gym.types import Message

MADE_UP_RATE = 0.2  # how many of the new words are made of syllables; the others are words of the environment

_WORD = re.compile(r"(?<![A-Za-z])[a-z]+")
# Words of the environment's own sentences that occur in names, too, as in "carrot on a stick".
_KEPT = frozenset({"a", "item", "of", "on", "the"})

_ANY_WORD = re.compile(r"(?<!Doc )(?<!\w)\w+")
_PROPER = re.compile(r"(?<!Doc )(?<!\w)(?:[0-9]+|[^\W\d_a-z]\w*)")
# Capitalised, and no names.
_SENTENCE_WORDS = frozenset(
    [
        "A",
        "According",
        "Airport",
        "At",
        "Borders",
        "By",
        "Capital",
        "City",
        "Communications",
        "Correct",
        "Country",
        "Discovered",
        "Discovery",
        "Doc",
        "Elements",
        "For",
        "From",
        "Has",
        "He",
        "How",
        "I",
        "IATA",
        "ISO",
        "If",
        "In",
        "Incorrect",
        "International",
        "Invalid",
        "Is",
        "It",
        "Its",
        "Named",
        "Of",
        "On",
        "Origin",
        "The",
        "There",
        "They",
        "This",
        "Title",
        "To",
        "Try",
        "What",
        "When",
        "Where",
        "Which",
        "Who",
    ]
)

_ONSETS = [
    "b",
    "br",
    "c",
    "ch",
    "d",
    "dr",
    "f",
    "fl",
    "g",
    "gl",
    "h",
    "j",
    "k",
    "l",
    "m",
    "n",
    "p",
    "pr",
    "qu",
    "r",
    "s",
    "sh",
    "st",
    "t",
    "tr",
    "v",
    "w",
    "z",
]
_VOWELS = ["a", "e", "i", "o", "u", "ai", "ee", "oo"]
_CODAS = ["", "", "l", "m", "n", "r", "s", "ck", "nd", "rt"]


def made_up_word(rng: np.random.Generator) -> str:
    """Return a word of two syllables."""
    return "".join(part[rng.integers(len(part))] for part in (_ONSETS, _VOWELS, _ONSETS, _VOWELS, _CODAS))


def rename_items(messages: tuple[Message, ...], rng: np.random.Generator) -> tuple[Message, ...]:
    """Return a TextCraft episode with the words of item names ("oak", "planks", ...) exchanged."""
    words = item_words()
    names: dict[str, str] = {}
    for word, number in zip(words, rng.permutation(len(words)), strict=True):
        names[word] = made_up_word(rng) if rng.random() < MADE_UP_RATE else words[number]
    return _replace(messages, _WORD, lambda word: names.get(word, word))


def rename_proper_names(messages: tuple[Message, ...], rng: np.random.Generator) -> tuple[Message, ...]:
    """Return a SearchQA episode with other proper names and numbers, each the same throughout the episode."""
    names: dict[str, str] = {}
    for message in messages:
        for word in _PROPER.findall(message["content"]):
            if message["role"] != "system" and word not in _SENTENCE_WORDS and word.lower() not in names:
                if word[0].isdigit():
                    other = "".join(str(digit) for digit in rng.integers(10, size=len(word)))
                elif word.isupper():
                    other = "".join(chr(ord("a") + letter) for letter in rng.integers(26, size=len(word)))
                else:
                    other = made_up_word(rng)
                names[word.lower()] = other

    def rename(word: str) -> str:
        other = names.get(word.lower(), "") if word not in _SENTENCE_WORDS else ""
        if not other:
            return word
        return other.upper() if len(word) > 1 and word.isupper() else other.capitalize() if word[0].isupper() else other

    return _replace(messages, _ANY_WORD, rename)


def _replace(
    messages: tuple[Message, ...], pattern: re.Pattern[str], other: Callable[[str], str]
) -> tuple[Message, ...]:
    return tuple(
        message
        if message["role"] == "system"
        else {"role": message["role"], "content": pattern.sub(lambda match: other(match[0]), message["content"])}
        for message in messages
    )


@functools.cache
def item_words() -> tuple[str, ...]:
    """Return the words in the names of training goals and basic items; held-out goals lend none of their own."""
    goals = load_book().goals
    env = TextCraftEnv(split="train")
    names = [goals[int(item_id.rpartition("_")[2])] for item_id in env.item_ids]
    words = {word for name in (*names, *load_book().gettable) for word in _WORD.findall(display(name))}
    return tuple(sorted(words - _KEPT))
