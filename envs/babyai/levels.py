"""The 40 levels of BabyAI, made by minigrid, which only this file and minigrid_2.py import."""

from __future__ import annotations

import logging
from typing import Any

from rllm_gym.errors import MachineError

logger = logging.getLogger(__name__)

# In AgentGym's order. Its fourth is GoToObjS6-v0 of minigrid 2.3, whose room has 4 x 4 cells; v1, the only one of
# minigrid 3, has 6 x 6.
LEVELS = (
    "BabyAI-GoToRedBallGrey-v0",
    "BabyAI-GoToRedBall-v0",
    "BabyAI-GoToRedBallNoDists-v0",
    "BabyAI-GoToObjS6-v1",
    "BabyAI-GoToLocalS8N7-v0",
    "BabyAI-GoToObjMazeS7-v0",
    "BabyAI-GoToImpUnlock-v0",
    "BabyAI-GoToSeqS5R2-v0",
    "BabyAI-GoToRedBlueBall-v0",
    "BabyAI-GoToDoor-v0",
    "BabyAI-GoToObjDoor-v0",
    "BabyAI-Open-v0",
    "BabyAI-OpenRedDoor-v0",
    "BabyAI-OpenDoorLoc-v0",
    "BabyAI-OpenRedBlueDoorsDebug-v0",
    "BabyAI-OpenDoorsOrderN4Debug-v0",
    "BabyAI-Pickup-v0",
    "BabyAI-UnblockPickup-v0",
    "BabyAI-PickupLoc-v0",
    "BabyAI-PickupDistDebug-v0",
    "BabyAI-PickupAbove-v0",
    "BabyAI-PutNextLocalS6N4-v0",
    "BabyAI-PutNextS7N4Carrying-v0",
    "BabyAI-Unlock-v0",
    "BabyAI-UnlockLocalDist-v0",
    "BabyAI-KeyInBox-v0",
    "BabyAI-UnlockPickupDist-v0",
    "BabyAI-BlockedUnlockPickup-v0",
    "BabyAI-UnlockToUnlock-v0",
    "BabyAI-ActionObjDoor-v0",
    "BabyAI-FindObjS7-v0",
    "BabyAI-KeyCorridorS6R3-v0",
    "BabyAI-OneRoomS20-v0",
    "BabyAI-MoveTwoAcrossS8N9-v0",
    "BabyAI-SynthS5R2-v0",
    "BabyAI-SynthLoc-v0",
    "BabyAI-SynthSeq-v0",
    "BabyAI-MiniBossLevel-v0",
    "BabyAI-BossLevel-v0",
    "BabyAI-BossLevelNoUnlock-v0",
)
_GROUPS = {  # group: numbers of its levels, from 1
    "goto": range(1, 12),
    "open": range(12, 17),
    "pickup": range(17, 22),
    "putnext": (22, 23, 34),
    "unlock": range(24, 30),
    "action_obj_door": (30,),
    "find": (31, 32, 33),
    "synth": range(35, 41),
}
_GROUP_OF = {number: group for group, numbers in _GROUPS.items() for number in numbers}
GROUPS = tuple(_GROUP_OF[number] for number in range(1, len(LEVELS) + 1))  # of each level, in the order of LEVELS
KEY_IN_BOX = LEVELS.index("BabyAI-KeyInBox-v0")


def make_level(index: int, seed: int, *, as_in_minigrid_2: bool = False) -> Any:
    """Return minigrid's environment of the level at `index` in `LEVELS`, reset with `seed`.

    Args:
        as_in_minigrid_2: builds what minigrid 2.3 builds, and at the second reset, as AgentGym does.

    Raises:
        ConfigError: minigrid is not installed.
    """
    try:
        import gymnasium
        import minigrid  # noqa: F401  (registers the levels)
        from minigrid.envs.babyai.core import roomgrid_level
    except ModuleNotFoundError as e:
        raise MachineError('BabyAI-v0 needs the minigrid package: pip install "rllm-gym[babyai]".') from e

    # Making a level prints the draws that it rejects. Redirecting stdout would do so for all threads, so the name is
    # bound in that module alone.
    vars(roomgrid_level)["print"] = _debug
    spec = gymnasium.spec(LEVELS[index])
    create: Any
    create, kwargs = gymnasium.envs.registration.load_env_creator(str(spec.entry_point)), spec.kwargs
    if as_in_minigrid_2:
        from rllm_gym.envs.babyai.minigrid_2 import LEVELS_2

        create, kwargs = LEVELS_2.get(spec.id, (create, kwargs))
    level: Any = create(**kwargs)
    # minigrid draws an image of the view at every move, which takes most of a move's time. view.py does without it.
    level.gen_obs = _no_image
    level.reset(seed=seed)
    if as_in_minigrid_2:
        level.reset(seed=seed)
    return level


def _debug(*values: object) -> None:
    logger.debug("minigrid: %s", " ".join(map(str, values)))


def _no_image() -> None:
    """Stand in for `MiniGridEnv.gen_obs`."""
