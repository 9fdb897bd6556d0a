"""SciWorld in AgentGym's protocol, action format `react`.

Source: Xi et al. 2024 (AgentGym), arXiv:2406.04151; github.com/WooooDyy/AgentGym at 3ef9235 (MIT),
agentenv/envs/sciworld.py and agentenv-sciworld.
"""

from __future__ import annotations

from rllm_gym.envs.agentgym import OK, AgentGymProtocol
from rllm_gym.envs.base import StepResult
from rllm_gym.envs.sciworld.env import MAX_ACTION_CHARS, NOT_UNDERSTOOD, SciWorldEnv, without_reset

MAX_MOVES = 100  # the package's envStepLimit
INSTRUCTION = """\
You are an agent for science world. Every round I will give you an observation, you have to respond an action \
based on the observation to finish the given task. Here are the actions you may take: [{"action": "open/close \
OBJ", "description": "open/close a container"}, {"action": "de/activate OBJ", "description": \
"activate/deactivate a device"}, {"action": "connect OBJ to OBJ", "description": "connect electrical \
components"}, {"action": "disconnect OBJ", "description": "disconnect electrical components"}, {"action": "use \
OBJ [on OBJ]", "description": "use a device/item"}, {"action": "look around", "description": "describe the \
current room"}, {"action": "look at OBJ", "description": "describe an object in detail"}, {"action": "look in \
OBJ", "description": "describe a container's contents"}, {"action": "read OBJ", "description": "read a note or \
book"}, {"action": "move OBJ to OBJ", "description": "move an object to a container"}, {"action": "pick up OBJ",\
 "description": "move an object to the inventory"}, {"action": "put down OBJ", "description": "drop an inventory\
 item"}, {"action": "pour OBJ into OBJ", "description": "pour a liquid into a container"}, {"action": "dunk OBJ \
into OBJ", "description": "dunk a container into a liquid"}, {"action": "mix OBJ", "description": "chemically \
mix a container"}, {"action": "go to LOC", "description": "move to a new location"}, {"action": "eat OBJ", \
"description": "eat a food"}, {"action": "flush OBJ", "description": "flush a toilet"}, {"action": "focus on \
OBJ", "description": "signal intent on a task object"}, {"action": "wait", "description": "take no action for 10\
 iterations"}, {"action": "wait1", "description": "take no action for 1 iteration"}, {"action":"examine \
OBJ","description":"provides a description of the objects present on or in a receptacle."}, {"action": "task", \
"description": "describe current task"}, {"action": "inventory", "description": "list your inventory"}]
Your response should use the following format:
Thought:
your thoughts.

Action:
your next action"""


class AgentGymSciWorld(AgentGymProtocol, SciWorldEnv):
    """`SciWorldEnv` with AgentGym's instruction.

    Reward: the simulator's score, -100 to 100, of the last step. Ends also after more than 100 moves of the simulator.
    """

    preamble = ((INSTRUCTION, OK),)

    def act(self, action: str) -> StepResult:
        _, found, after = action.removesuffix("</s>").rpartition("Action:")
        # Without "Action:" nothing is asked for, but for what has the form of WebShop's actions.
        command = after if found or "search[" in after or "click[" in after else ""
        command = command.strip()[:MAX_ACTION_CHARS]
        simulation = self._live_simulation()
        reply, score, is_complete = simulation.step(without_reset(command))
        self._history.append((command, reply))
        self._score = score
        self._is_over = self._is_over or is_complete or score < 0 or simulation.num_moves > MAX_MOVES
        self.is_success = score >= 100
        return StepResult(reply, float(score), self._is_over, is_invalid=reply.startswith(NOT_UNDERSTOOD))
