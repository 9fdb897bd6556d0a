"""The data that every episode begins with; all of it made up, and the same for one seed."""

from __future__ import annotations

import functools
import random

from rllm_gym.envs.webarena.sites.database import Database
from rllm_gym.envs.webarena.sites.seed import code, departments, forum, more_forums, shop, town


@functools.lru_cache(maxsize=2)
def seeded_image(seed: int = 0) -> bytes:
    """Return the serialized database that every episode of this seed begins with."""
    database = Database()
    # A generator of its own for each, so that a change of one leaves the others as they are.
    parts = {
        "shop": shop, "forum": forum, "code": code, "town": town, "departments": departments,
        "more forums": more_forums,
    }  # fmt: skip
    for name, part in parts.items():
        part.fill(database, random.Random(f"{name} {seed}"))
    image = database.image()
    database.close()
    return image
