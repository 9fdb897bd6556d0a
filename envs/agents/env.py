"""`AgentEnv`: a text environment as an agent plays it, in a format, with plans, reflections, attempts and a context."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import gymnasium
from gymnasium.utils import RecordConstructorArgs

from rllm_gym.envs.agents.context import Said
from rllm_gym.envs.agents.formats import FORMATS, MAX_CALLS, Tools
from rllm_gym.envs.agents.functions import BadCallError, Language
from rllm_gym.envs.agents.rewards import RewardedTurn
from rllm_gym.envs.agents.spec import agent_spec
from rllm_gym.envs.text_space import REQUEST, UNREADABLE, UnicodeText, check_text_env
from rllm_gym.infos import read
from rllm_gym.types import CONTEXT_TURNS, REPLIES, TURN

if TYPE_CHECKING:
    from rllm_gym.tool_calls import ToolCalls  # which needs tokenizers

MAX_ADDED_CHARS = 1_000  # to what the environment says

ASK = {
    "plan": "First write a plan: the steps that you will take. You act from your next turn on.",
    "reflection": "Before you go on, reflect: what was learned or went wrong, and what comes next? Do not act yet.",
    "summary": (
        "Summarize what you have done and seen, with everything that you still need: you will not read it again. Do "
        "not act yet."
    ),
}
ASK_AFTER_FAILURE = (
    "This attempt has failed. Reflect: what went wrong, and what will you do otherwise? You begin again after that."
)
GO_ON = {
    "plan": "Now carry out your plan.",
    "reflection": "Now go on with the task.",
    "summary": "Now go on with the task. The last reply was:\n",
}


class AgentEnv(gymnasium.Wrapper[str, str, str, str], RecordConstructorArgs):
    """Wraps a text environment, so that what a policy writes is a turn of an agent.

    An agent's turn is an action in a format, or what it was asked for: a plan, a reflection, a summary. Each is one
    step here, and so one turn of the horizon; only an action reaches the environment. The observation of a step says
    what comes next.

    - `format`: `native` is the environment's own. With another one the system prompt asks for that one, `step` reads it
      (see `formats`), and the environment gets its own. A text that is no turn of the format is answered here and
      is an invalid action: the environment is not stepped, and the reward is 0. `tools` is the model's own: the chat
      template tells of the functions, and `TokenEnv` gives what reads the calls (`use_tool_calls`).
    - `parallel_calls`: several calls in one turn are made in order (`run`), up to one that ends the episode; the reply
      is theirs, a line each, and the reward their sum. `refuse` makes such a turn an invalid action.
    - `plan: true`: the first completion is a plan.
    - `reflect: {every: n}`, `reflect: on_error`: a reflection follows every n-th action, and every invalid one.
    - `attempts: k`: where an attempt fails, which the environment ends without success or which has taken
      `attempt_turns` actions, the policy reflects on it and plays the same task again, from the same seed. What it has
      earned is taken back with its last action, so that an episode's return is that of its last attempt.
    - `context`: `full`, `{last_n_turns: n}` or `{summarize_observations: n}`, a summary after every n actions. Plans
      and the reflections on failed attempts stay; but for `full` nothing else stays of a failed attempt.
    - `rewards`: functions of a turn (`RewardedTurn`), weighted and added up; without it, the environment's reward.

    Info, beside the environment's: `rllm_gym/request`, the end of the observation that asks for a plan, a reflection or
    a summary, so that no bound on the environment's words cuts it off; `rllm_gym/turn`, of the last step: its `kind`,
    its `attempt` and, where there are reward functions, their values (`rewards`); and `rllm_gym/context_turns`, the
    numbers of the turns that the policy reads next, where the context is not full. `TokenEnv` rewrites the history by
    it; at the text level that is up to the caller.

    Args:
        env: the text environment. Its attributes `functions`, `turn_form` and `introduction` (see `TextEnv`) say how it
            is spoken to; without them an action is a call of `act` with one text.
        agent: the options above.

    Raises:
        ConfigError: an option cannot be.
    """

    def __init__(self, env: gymnasium.Env[str, str], agent: Mapping[str, Any]) -> None:
        check_text_env(env, "agent")
        self.agent = agent_spec(agent)
        RecordConstructorArgs.__init__(self, agent=agent)
        gymnasium.Wrapper.__init__(self, env)
        self._format = copy.copy(FORMATS[self.agent.format])
        space = env.observation_space
        assert isinstance(space, gymnasium.spaces.Text)  # checked above
        num_replies = MAX_CALLS if self.agent.format != "native" and self.agent.parallel_calls == "run" else 1
        self.observation_space = UnicodeText(num_replies * (space.max_length + 1) + MAX_ADDED_CHARS)
        self.action_space = UnicodeText(space.max_length + MAX_ADDED_CHARS)
        self._said: list[Said] = []
        self._asked: deque[str] = deque()
        self._has_failed = False  # the attempt; the reflection that is asked for is on it
        self._attempt = 0  # before a reset
        self._info: dict[str, Any] = {}
        self._request = ""  # asked for at the end of the last observation
        self._replies: list[str] = []  # to the calls of the last turn

    @property
    def max_kept_turns(self) -> int | None:
        """The most turns in `info["rllm_gym/context_turns"]`; None where all of them stay."""
        return self.agent.max_kept_turns

    @property
    def tools(self) -> list[dict[str, Any]]:
        """The functions that the chat template is to tell the policy of, in JSON Schema; none but for `tools`."""
        if not isinstance(self._format, Tools):
            return []
        return [function.schema for function in Language.of(self.unwrapped).functions]

    def use_tool_calls(self, calls: ToolCalls) -> None:
        """Read and write calls as a model's family does."""
        assert isinstance(self._format, Tools)
        self._format.calls = calls

    @property
    def system_prompt(self) -> str:
        """The instruction: the environment's, for the format, and what the agent forgets; "" where it has none."""
        language = Language.of(self.unwrapped)
        if language.is_silenced:
            return ""
        prompt = self._format.system_prompt(language)
        return "\n".join(part for part in (prompt, self.agent.context.note) if part)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        if seed is None and self.agent.attempts > 1:  # the next attempt needs it
            seed = int(self.np_random.integers(2**31))
        observation, self._info = self.env.reset(seed=seed, options=options)
        self._seed, self._options = seed, options
        self._said = []
        self._begin_attempt()
        self._request = ""
        if self.agent.plan:
            self._asked.append("plan")
            self._request = f"\n\n{ASK['plan']}"
        return observation + self._request, {**self._info, REQUEST: self._request}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        if not self._attempt:
            raise gymnasium.error.ResetNeeded("AgentEnv: step comes after reset; got a step before any. Call reset().")
        attempt, number = self._attempt, len(self._said)
        kind = self._asked.popleft() if self._asked else "action"
        self._said.append(Said(kind, attempt, is_pinned=kind == "plan" or self._has_failed))
        command = None
        self._request, self._replies = "", []
        reward, terminated, truncated = 0.0, False, False
        if kind == "action":
            command, reply, reward, terminated, truncated = self._act(action)
        else:
            self._info = {**self._info, "is_invalid_action": False}
            reply = self._after(kind)
        turn: dict[str, Any] = {"kind": kind, "attempt": attempt}
        if self.agent.rewards:
            seen = RewardedTurn(
                action, kind, command, reply, reward, terminated or truncated, number, attempt, self._info
            )
            turn["rewards"] = {function.name: function(seen) for function in self.agent.rewards}
            reward = sum(function.weight * turn["rewards"][function.name] for function in self.agent.rewards)
        info = {**self._info, TURN: turn, REQUEST: self._request, REPLIES: self._replies}
        if self.agent.context.kind != "full":
            info[CONTEXT_TURNS] = self.agent.context.kept(self._said, self._attempt)
        return reply + self._request, reward, terminated, truncated, info

    def expert_action(self) -> str:
        """Return the expert's next text: its action in the format, or the plan or reflection that is asked for."""
        expert = self.env.get_wrapper_attr("expert_action")()
        if not self._asked:
            return self._format.write(expert, Language.of(self.unwrapped))
        _, action = Language.of(self.unwrapped).split(expert)
        if self._asked[0] == "summary":
            return f"Done so far: {'; '.join(self._actions) or 'nothing'}. The next step: {action}"
        if self._asked[0] == "reflection":
            return f"The next step is: {action}. I look at each reply and correct what goes wrong."
        return f"I begin with: {action}. Then I look at each reply and take the next step, until the task is done."

    # --- the parts of a step ---

    def _begin_attempt(self) -> None:
        self._attempt = self._said[-1].attempt + 1 if self._said else 1
        self._asked.clear()
        self._has_failed = False
        self._num_actions, self._earned = 0, 0.0
        self._reply = ""
        self._actions: list[str] = []  # what the environment got, for an expert's summary

    def _act(self, text: str) -> tuple[str | None, str, float, bool, bool]:
        """Return the action that reached the environment, the reply, the reward, terminated and truncated."""
        language, command = Language.of(self.unwrapped), None
        try:
            commands = self._commands(text, language)
        except BadCallError as error:
            reply, reward, terminated, truncated = f"Invalid. {self._format.rule}: {error}.", 0.0, False, False
            self._info = {**self._info, "is_invalid_action": True}
        else:
            command = "\n".join(commands)
            reply, reward, terminated, truncated = self._make_calls(commands, language)
        self._num_actions += 1
        self._earned += reward
        self._reply = reply
        said = read(self._info, "is_success")
        is_success = self._earned > 0 if said is None else said
        is_out_of_turns = self._num_actions == self.agent.attempt_turns and not (terminated or is_success)
        if is_out_of_turns or ((terminated or truncated) and not is_success):
            if self._attempt < self.agent.attempts:
                self._has_failed = True
                self._asked.append("reflection")
                self._request = f"\n\n{ASK_AFTER_FAILURE}"
                return command, reply, reward - self._earned, False, False
            truncated = truncated or (is_out_of_turns and not terminated)
        if not (terminated or truncated):
            self._asked.extend(self._due())
            if self._asked:
                self._request = f"\n\n{ASK[self._asked[0]]}"
        return command, reply, reward, terminated, truncated

    def _commands(self, text: str, language: Language) -> list[str]:
        """Return the actions for the environment, in order.

        Raises:
            BadCallError: the text is no turn of the format.
        """
        commands = [UNREADABLE.sub("", command) for command in self._format.read(text, language)]
        most = 1 if self.agent.parallel_calls == "refuse" else MAX_CALLS
        if len(commands) > most:
            raise BadCallError(f"it has {len(commands)} calls; at most {most} may stand in a turn")
        return commands

    def _make_calls(self, commands: Sequence[str], language: Language) -> tuple[str, float, bool, bool]:
        """Step the environment, up to the end of the episode; return replies, reward, terminated and truncated."""
        replies, reward, is_invalid = [], 0.0, False
        for command in commands:
            reply, given, terminated, truncated, self._info = self.env.step(command)
            replies.append(reply)
            reward += float(given)
            is_invalid = is_invalid or bool(read(self._info, "is_invalid_action"))
            self._actions.append(language.split(command)[1])
            if terminated or truncated:
                break
        if is_invalid:
            self._info = {**self._info, "is_invalid_action": True}
        self._replies = replies
        return "\n".join(replies), reward, terminated, truncated

    def _due(self) -> list[str]:
        """Return the text to be written before the next action."""
        agent, due = self.agent, []
        is_wrong = agent.reflect_on_error and read(self._info, "is_invalid_action")
        if is_wrong or (agent.reflect_every is not None and self._num_actions % agent.reflect_every == 0):
            due.append("reflection")
        if agent.context.wants_summary(self._said):
            due.append("summary")
        return due

    def _after(self, kind: str) -> str:
        """Return the answer to what was asked for."""
        if self._has_failed:
            item_id = read(self._info, "item_id")
            options = self._options if item_id is None else {**(self._options or {}), "item_id": item_id}
            observation, self._info = self.env.reset(seed=self._seed, options=options)
            self._begin_attempt()
            return f"Attempt {self._attempt} of {self.agent.attempts}.\n\n{observation}"
        if self._asked:
            return ASK[self._asked[0]]
        return GO_ON[kind] + (self._reply if kind == "summary" else "")
