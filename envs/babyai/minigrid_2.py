"""The levels that minigrid 2.3, which AgentGym plays, builds otherwise than minigrid 3."""

from __future__ import annotations

from typing import Any

from minigrid.envs.babyai.goto import GoToObj
from minigrid.envs.babyai.synth import SynthLoc, SynthSeq


class _KeepsLockedRoom:
    """minigrid 2.3 keeps the locked room of the mission before, which may have been rejected, and draws by it."""

    _kept: Any = None

    @property
    def locked_room(self) -> Any:
        return self._kept

    @locked_room.setter
    def locked_room(self, room: Any) -> None:
        self._kept = room or self._kept


class SynthLoc2(_KeepsLockedRoom, SynthLoc):  # type: ignore[misc]
    pass


class SynthSeq2(_KeepsLockedRoom, SynthSeq):  # type: ignore[misc]
    pass


# By the id in minigrid 3; minigrid 2.3's GoToObjS6-v0 is as small as GoToObjS4-v0.
LEVELS_2 = {
    "BabyAI-GoToObjS6-v1": (GoToObj, {"room_size": 4}),
    "BabyAI-SynthLoc-v0": (SynthLoc2, {}),
    "BabyAI-SynthSeq-v0": (SynthSeq2, {}),
}
