"""Draws the made-up data of all sites."""

from __future__ import annotations

import random
from collections.abc import Sequence
from datetime import timedelta

from rllm_gym.envs.webarena.sites.database import START

PASSWORD = "lighthouse7"  # of every account: nothing here is a secret


def times(rng: random.Random, count: int, days: int) -> list[str]:
    """Return different times of the last `days` days before the start, the earliest first."""
    minutes = sorted(rng.sample(range(60, days * 24 * 60), count), reverse=True)
    return [(START - timedelta(minutes=m)).strftime("%Y-%m-%d %H:%M") for m in minutes]


def names(rng: random.Random, count: int) -> list[str]:
    """Return different names of people."""
    return rng.sample([f"{first} {last}" for first in FIRST.split() for last in LAST.split()], count)


def skewed(rng: random.Random, low: int, high: int) -> int:
    """Return a number that is more often small than large, as votes and stars are."""
    return low + int((high - low) * rng.random() ** 3)


def cycled(rng: random.Random, items: Sequence[str], count: int) -> list[str]:
    """Return `count` of the items in a random order, each as often as the others as far as that goes."""
    result: list[str] = []
    while len(result) < count:
        result += rng.sample(items, len(items))
    return result[:count]


FIRST = (
    "Amira Bela Carlos Dana Elif Farid Greta Hana Ivan Jonas Kaori Lena Mateo Nadia Omar Petra Quinn Rosa Samir "
    "Tara Umi Viktor Wanda Xenia Yusuf Zoe"
)
LAST = (
    "Abara Bauer Castillo Duarte Eklund Ferrari Grant Hoang Ito Jansen Khan Lindgren Moreau Novak Okafor Petrov "
    "Quist Rossi Silva Tanaka Ueda Varga Weber Xu Yilmaz Zeller"
)
