"""SciWorldEnv: the environment of ScienceWorld."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Unpack

from rllm_gym.envs.agents.functions import REACT, Function
from rllm_gym.envs.base import StepResult, TextEnv, parse_action
from rllm_gym.envs.items import TextOptions, restrict
from rllm_gym.envs.sciworld.expert import gold_path, next_action
from rllm_gym.envs.sciworld.jvm import Simulation
from rllm_gym.envs.sciworld.tasks import NUM_AGENTGYM_ITEMS, TASKS, load_items, split_indices
from rllm_gym.errors import ConfigError, EnvError, nearest

TASK_SETS = ("all", "agentgym")
NOT_UNDERSTOOD = ("No known action matches that input.", "Unknown action.")  # the second where a number is asked for
MAX_ACTION_CHARS = 500  # several times the longest command; the simulator reads no more of a text

INTRODUCTION = "You carry out science experiments in a simulated house. The first message states the task."
SYSTEM_PROMPT = f"""\
{INTRODUCTION}
Each turn, write one thought and one action:
Thought: what to do next and why
Action: one of the actions below (OBJ is an object that you see, LOC a place)
- look around, look at OBJ, look in OBJ, read OBJ: observe
- go to LOC, open OBJ, close OBJ: move; doors are objects
- pick up OBJ, put down OBJ, move OBJ to OBJ, inventory: handle things
- activate OBJ, deactivate OBJ, use OBJ, use OBJ on OBJ: operate devices
- pour OBJ into OBJ, dunk OBJ into OBJ, mix OBJ: handle liquids; mix the contents of a container
- connect OBJ to OBJ, disconnect OBJ: build electrical circuits
- eat OBJ, flush OBJ: what they say
- focus on OBJ: name the object that the task asks for; a wrong one fails the task
- wait: let 10 steps of time pass; wait1: let one pass
- task: read the task again
If the answer lists numbered choices, reply with a number."""
FUNCTIONS = (
    Function("look_around", "look around", "see the room"),
    Function("look_at", "look at {thing}", "look at an object"),
    Function("examine", "examine {thing}", "look at an object closely"),
    Function("look_in", "look in {thing}", "look into a container"),
    Function("read", "read {thing}", "read it"),
    Function("go_to", "go to {place}", "go to a place next to this one"),
    Function("open", "open {thing}", "open a container or a door"),
    Function("close", "close {thing}", "close a container or a door"),
    Function("pick_up", "pick up {thing}", "put an object into the inventory"),
    Function("put_down", "put down {thing}", "take an object out of the inventory"),
    Function("drop", "drop {thing}", "the same"),
    Function("move", "move {thing} to {place}", "put an object into a container"),
    Function("inventory", "inventory", "see what you carry"),
    Function("activate", "activate {device}", "switch it on"),
    Function("deactivate", "deactivate {device}", "switch it off"),
    Function("use_on", "use {thing} on {target}", "use one thing on another"),
    Function("use", "use {thing}", "use it"),
    Function("pour", "pour {liquid} into {container}", "pour a liquid"),
    Function("pour_in", "pour {liquid} in {container}", "the same"),
    Function("dunk", "dunk {container} into {liquid}", "fill a container from a liquid"),
    Function("mix", "mix {container}", "mix the contents of a container"),
    Function("connect", "connect {part} to {other}", "connect electrical parts"),
    Function("disconnect", "disconnect {part}", "take the connections off an electrical part"),
    Function("eat", "eat {thing}", "eat it"),
    Function("flush", "flush {thing}", "flush it"),
    Function("focus_on", "focus on {thing}", "name the object that the task asks for; a wrong one fails the task"),
    Function("wait_one", "wait1", "let one step of time pass"),
    Function("wait", "wait", "let 10 steps of time pass"),
    Function("task", "task", "read the task again"),
    Function("choose", "{number}", "answer numbered choices", integers=("number",)),
    Function("cancel", "", "answer numbered choices with none of them"),
)


class SciWorldEnv(TextEnv):
    """Carry out a science experiment in a simulated house.

    Task:
        30 science tasks of 10 to 1,386 variations, 7,207 items in all: boil water, measure a melting point, build a
        circuit, find an animal, grow a fruit, mix paints, compare life spans, cross plants, and so on.

    Observation:
        Text. First the task's description and, from the next line on, what "look around" shows; then the simulator's
        reply to each action. "No known action matches that input." answers what it does not understand, and takes no
        time. "Ambiguous request: ..." lists numbered choices; the next action is the number, and any other cancels.

    Action:
        Text: `Thought: ...` and `Action: ...`, on one line or several; without "Action:" the whole text is the action.
        The simulator's commands ("open door to kitchen", "focus on thermometer"), of which it accepts several forms;
        the system prompt lists them. At most 500 characters are read.

    Reward:
        The change of max(score, 0) / 100, where the simulator's score goes from 0 to 100, so that the return is the
        final score. A step that fails the task has a reward of minus all that was gained before; no other is negative.

    Episode end:
        Terminated when the task is complete (score 100) or has failed (score -100, as by focusing on a wrong object);
        never truncated from inside. Later actions are still answered, with a reward of 0.

    Info keys:
        `item_id` ("sciworld_17"), `category` (the science task, like "find-animal"), `is_success` (the score is 100),
        `is_invalid_action` (the simulator did not understand the action), `score` (-100 to 100).

    Data:
        The simulator of the package scienceworld 1.2.3 (Apache-2.0; Wang et al. 2022, arXiv:2203.07540), in one Java
        process for all environments of a Python process, started by the first reset. Items 0 to 4,638 are AgentGym's
        games in its order, the variations of 23 tasks; the other 2,568 follow. Splits: `train` holds upstream's
        training variations (3,592; 2,312 of AgentGym's), `eval` its development and test ones (3,615; 2,327).

    Differs from AgentGym: the reward is not the score itself; no limit of 100 moves, `max_episode_steps` is there for
    that; "reset task", which takes the progress back and which its prompt does not name, is not understood; actions
    after the end are answered.

    Version history:
        v0: first version.

    Args:
        task_set: "all", or "agentgym" to draw from AgentGym's games only.
        tasks: restricts draws to this science task, named as in `info["category"]`, or to one of these.
        items: `split`, `item_ids`, `splits`, `system_prompt` and `render_mode`, see `TextEnv`.

    Raises:
        ConfigError: see `TextEnv`; an unknown task set or task; or a package or Java is missing.
        EnvError: from `reset` and `step`, when the Java process dies; the next reset starts a new one.
    """

    name = "sciworld"
    safe_options = ("task_set", "tasks")
    default_system_prompt = SYSTEM_PROMPT
    introduction, turn_form, functions = INTRODUCTION, REACT, FUNCTIONS

    def __init__(
        self,
        *,
        task_set: str = "all",
        tasks: str | Sequence[str] | None = None,
        **items: Unpack[TextOptions],
    ) -> None:
        if task_set not in TASK_SETS:
            raise ConfigError(
                f'SciWorldEnv: task_set must be "all" or "agentgym"; got {task_set!r}. '
                f"Did you mean {nearest(task_set, TASK_SETS)!r}?"
            )
        self.task_set = task_set
        self._tasks = restrict(
            "SciWorldEnv: tasks must be names of science tasks", tasks, [task.name for task in TASKS]
        )
        self.num_items = len(load_items())
        self._simulation: Simulation | None = None
        self._observation = ""
        self._history: list[tuple[str, str]] = []  # (action, reply)
        self._score = 0
        self._is_over = False
        super().__init__(**items)

    def split_indices(self, split: str) -> Sequence[int]:
        end = NUM_AGENTGYM_ITEMS if self.task_set == "agentgym" else self.num_items
        items = load_items()
        return [index for index in split_indices(split) if index < end and items[index][0].name in self._tasks]

    @property
    def category(self) -> str:
        return load_items()[self.index][0].name

    def reset_item(self, index: int) -> str:
        self._history = []
        self._score = 0
        self._is_over = False
        old, self._simulation = self._simulation, None
        self._simulation, self._observation = self._open(old)
        return self._observation

    def act(self, action: str) -> StepResult:
        command = parse_action(action)[:MAX_ACTION_CHARS]
        reply, score, is_complete = self._live_simulation().step(without_reset(command))
        self._history.append((command, reply))
        reward = 0.0
        if not self._is_over:
            reward = (max(score, 0) - max(self._score, 0)) / 100
            self._score = score
            self._is_over = is_complete or score < 0
            self.is_success = score >= 100
        return StepResult(reply, reward, self._is_over, is_invalid=reply.startswith(NOT_UNDERSTOOD))

    def expert_action(self) -> str:
        try:
            path = gold_path(self.index)
        except EnvError:  # the next step says so
            path = ()
        action = next_action(path, self._observation, self._history)
        return f"Thought: My next step is to {action or 'cancel'}.\nAction: {action}"

    def hints(self) -> tuple[list[str], list[str]]:
        """Return the forms of the simulator's actions, with OBJ for an object, and the objects that there are."""
        simulation = self._live_simulation()
        return simulation.ask("getPossibleActions"), simulation.ask("getPossibleObjects")

    def goals(self) -> str:
        """Return the simulator's table of the task's goals, with those that are reached."""
        return self._live_simulation().ask("getGoalProgressStr")

    def close(self) -> None:
        if self._simulation is not None:
            self._simulation.close()
        self._simulation = None
        self._index = None
        super().close()

    def __getstate__(self) -> dict[str, Any]:
        """A copy opens its own environment and repeats the actions, when it is stepped."""
        return {**self.__dict__, "_simulation": None}

    def _info(self) -> dict[str, Any]:
        return {**super()._info(), "score": self._score}

    def _open(self, old: Simulation | None = None) -> tuple[Simulation, str]:
        """Load the present item and return it with its first observation."""
        task, variation = load_items()[self.index]
        simulation = Simulation(task.name, variation, replaces=old)
        return simulation, f"{simulation.description}\n{simulation.step('look around')[0]}"

    def _live_simulation(self) -> Simulation:
        """Return the episode's environment, after opening it again in a copy of the environment or a forked process."""
        if self._simulation is None or self._simulation.is_foreign:
            simulation, _ = self._open()
            for command, reply in self._history:
                if simulation.step(without_reset(command))[0] != reply:
                    raise EnvError(f"SciWorldEnv: a copied episode must repeat; {command!r} differed. Reset it.")
            self._simulation = simulation
        return self._simulation


def without_reset(command: str) -> str:
    """Return a command, but one that is not understood in place of "reset task", which takes all progress back."""
    return "reset" if "reset" in command.lower() else command  # "reset the task", too
