"""The expert: the simulator's gold path, and the way back to it."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable

from rllm_gym.envs.sciworld.jvm import Simulation
from rllm_gym.envs.sciworld.tasks import load_items

UNKNOWN = "No known action matches that input."
MENU = "Ambiguous request:"
WAIT = "wait1"  # always legal; what a gold path ends with when something must grow or boil
_ROOM = re.compile(r"(?:room|location) is called the ([^.]+)\.")
_MOVE = re.compile(r"You move to the ([^.]+)\.")


@functools.lru_cache(maxsize=1024)
def gold_path(index: int) -> tuple[str, ...]:
    """Return the simulator's own solution of an item; genetics tasks take seconds, and others wait meanwhile.

    Raises:
        EnvError: the simulator failed.
    """
    task, variation = load_items()[index]
    simulation = Simulation(task.name, variation, has_gold=True)
    try:
        return simulation.gold_path()
    finally:
        simulation.close()


def next_action(path: tuple[str, ...], observation: str, history: Iterable[tuple[str, str]]) -> str:
    """Return the expert's next action.

    It is the next one of the path. After a mistake the expert cancels a menu, walks back through the doors that were
    passed, and goes on with the path. When the path is over, or does not fit any more, it waits.

    Args:
        path: the gold path.
        observation: the first one, which names the room.
        history: (action, reply) of every step.
    """
    tracker = _Tracker(path, observation)
    for action, reply in history:
        tracker.update(action, reply)
    return tracker.next_action()


class _Tracker:
    def __init__(self, path: tuple[str, ...], observation: str) -> None:
        room = _ROOM.search(observation)
        self.path = path
        self.num_done = 0  # actions of the path that were taken
        self.room = room[1] if room else ""
        self.way_back: list[str] = []  # rooms left by mistake, the last one on top
        self.has_menu = False  # the simulator asks which of several actions is meant
        self.menu_is_mine = False
        self.has_strayed = False
        self.is_lost = False

    def next_action(self) -> str:
        if self.has_menu:
            return "0" if self.menu_is_mine else ""  # an empty answer cancels
        if self.is_lost or (self.num_done == len(self.path) and not self.way_back):
            return WAIT
        return f"go to {self.way_back[-1]}" if self.way_back else self.path[self.num_done]

    def update(self, action: str, reply: str) -> None:
        is_answer, is_mine = self.has_menu, action == self.next_action()
        is_on_path = is_mine and not is_answer and not self.way_back and self.num_done < len(self.path)
        self.has_menu = reply.startswith(MENU)
        self.menu_is_mine = self.has_menu and is_mine
        self.has_strayed |= not is_mine
        if is_on_path and not self.is_lost:
            self.num_done += 1
        # Actions of a gold path may fail, as where it looks for a working sink; after a mistake it is another matter.
        if is_mine and reply == UNKNOWN and self.has_strayed and not is_answer:
            self.is_lost = True
        if move := _MOVE.match(reply):
            if self.way_back and move[1] == self.way_back[-1]:
                self.way_back.pop()
            elif not (is_on_path or (is_answer and is_mine)):
                self.way_back.append(self.room)
            self.room = move[1]
