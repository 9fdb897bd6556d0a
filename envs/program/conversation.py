"""The requests that come to one session of an endpoint, as an environment: what they ask is its observations."""

from __future__ import annotations

import contextlib
import json
import math
import numbers
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NoReturn, Unpack

from rllm_gym.envs.base import MAX_TEXT_CHARS, StepResult, TextEnv
from rllm_gym.envs.items import TextOptions
from rllm_gym.envs.program.requests import Call, Choice, ModelRequest, OwnTurns, RequestError, ToolCall
from rllm_gym.errors import ConfigError, EnvError
from rllm_gym.tool_calls import Parsed

SAMPLING_PARAMS = ("replace", "refuse")
REPLACED_PARAMS = "replaced_params"  # of an info: how often requests asked for which


class ConversationEnv(TextEnv):
    """An environment that asks what its session is asked, and answers that with the actions.

    A subclass writes `_wait`, which returns the step at the next request or at the end, and `_fail`.

    Args:
        sampling_params: "replace" or "refuse", see `ProgramEnv`.
        tool_parser: see `ProgramEnv`.
        options: see `TextEnv`.
    """

    default_system_prompt = ""
    needs_horizon = True  # requests may come for ever

    def __init__(
        self, *, sampling_params: str = "replace", tool_parser: str | None = None, **options: Unpack[TextOptions]
    ) -> None:
        if sampling_params not in SAMPLING_PARAMS:
            raise ConfigError(
                f"{type(self).__name__}: sampling_params must be replace or refuse; got {sampling_params!r}. "
                "Choose one of these."
            )
        self._sampling_params, self.tool_parser = sampling_params, tool_parser
        # The token level sets these two, and says what comes of an action.
        self.check_request: Callable[[ModelRequest], None] = lambda request: None
        self.read_text: Callable[[ModelRequest, str], Parsed] = _said_only
        self.usage, self.finish_reason, self.stopped_by = (0, 0), "stop", ""
        self.token_logps: Sequence[tuple[str, float]] | None = None
        self.request: ModelRequest | None = None  # that the next action answers
        self._session: Any = None
        super().__init__(**options)

    def _begin(self) -> None:
        """Begin a conversation."""
        self._own_turns = OwnTurns()
        self._call: Call | None = None
        self._choices: list[Choice] = []
        self._messages: list[dict[str, Any]] = []  # of the last request, and its answer
        self._num_turns = self._num_requests = self._num_said = 0
        self._replaced: Counter[str] = Counter()

    def act(self, action: str) -> StepResult:
        if self._call is None or self.request is None:
            raise EnvError(f"{type(self).__name__}: it has ended, and no request waits for an answer. Reset it.")
        request = self._call.request
        content, calls, _ = self.read_text(self.request, action)
        named = tuple(ToolCall(f"c{self._num_turns:04d}{k:04d}", *call) for k, call in enumerate(calls))
        reason = self.finish_reason if self.finish_reason != "stop" or not named else "tool_calls"
        choice = Choice(content, named, reason, self.stopped_by, self.token_logps)
        self._own_turns.add(request.messages, choice, self._num_turns, action)
        self._num_turns += 1
        self._choices.append(choice)
        self._num_said += self.usage[1]
        if len(self._choices) < request.num_choices:
            return StepResult("(Another answer to the same request.)", 0.0, is_over=False, is_invalid=False)
        self._messages = [*request.messages, choice.message]
        self._num_requests += 1
        self._call.take(self._choices, (self.usage[0], self._num_said))
        self._call, self.request = None, None
        return self._wait()

    def _wait(self) -> StepResult:
        """Wait for the next request, or for the end."""
        raise NotImplementedError

    def _info(self) -> dict[str, Any]:
        counted = {"num_requests": self._num_requests, REPLACED_PARAMS: dict(self._replaced)}
        return {**super()._info(), **counted}

    def _take(self, call: Call) -> StepResult | None:
        """Return the step at a request; None for one that nobody waits for any more, or that is refused."""
        if call.is_gone:
            return None
        try:
            reply = self._show(call)
        except RequestError as error:
            call.refuse(error)
            return None
        return StepResult(reply, 0.0, is_over=False, is_invalid=False)

    def _show(self, call: Call) -> str:
        """Make a request the one that is answered next; return what it adds to what was said before.

        Raises:
            RequestError: it cannot be answered.
        """
        asked = call.request
        if asked.replaced and self._sampling_params == "refuse":
            raise RequestError(
                f"{asked.replaced[0]} is the run's (sampling_params: refuse). Leave it out.", code="unsupported"
            )
        shown, own_turns = self._own_turns.found_in(asked.messages)
        request = replace(asked, messages=shown, own_turns=own_turns)
        self.check_request(request)
        self._replaced.update(asked.replaced)
        self._call, self.request, self._choices, self._num_said = call, request, [], 0
        added = shown[max(own_turns, default=-1) + 1 :]
        return "\n\n".join(map(_as_text, added))[:MAX_TEXT_CHARS]

    def _fail(self, why: str) -> NoReturn:
        """End the episode with an error."""
        raise NotImplementedError

    def _refuse_waiting(self, error: RequestError) -> None:
        """Answer the request that waits, if one does, with an error."""
        if getattr(self, "_call", None) is not None:
            self._call.refuse(error)  # type: ignore[union-attr]
        self._call = self.request = None


def read_reward(found: Any) -> tuple[float, bool]:
    """Return the reward, and whether it is a success, of a number or a mapping.

    Raises:
        ValueError: it is neither.
    """
    said = found if isinstance(found, Mapping) else {"reward": found}
    value = said.get("reward")
    reward = math.nan
    if isinstance(value, numbers.Real) and not isinstance(value, bool):
        with contextlib.suppress(OverflowError):
            reward = float(value)
    if not math.isfinite(reward):
        raise ValueError(f"a reward must be a finite number, or a mapping with one as reward; got {found!r:.200}")
    is_success = said.get("is_success", reward >= 1)
    if is_success not in (False, True):
        raise ValueError(f"is_success must be true or false; got {is_success!r:.200}")
    return reward, bool(is_success)


def note_of_replaced(infos: Iterable[Mapping[str, Any]]) -> str:
    """Return a line for the user on what episodes' requests asked for and did not get; "" for nothing."""
    found = [info.get(REPLACED_PARAMS) for info in infos]
    names = {str(name) for params in found if isinstance(params, Mapping) for name in params}
    if not names:
        return ""
    return (
        f"requests ask for {', '.join(sorted(names))} of their own: the run's are used instead "
        "(sampling_params: refuse answers such requests with an error)"
    )


def _said_only(request: ModelRequest, text: str) -> Parsed:
    return Parsed(text, [])


def _as_text(message: Mapping[str, Any]) -> str:
    """Return a message for a reader; who speaks is said of all but the user."""
    said = str(message["content"])
    if calls := message.get("tool_calls"):
        said = f"{said}\n{json.dumps([call['function'] for call in calls], ensure_ascii=False)}".strip()
    return said if message["role"] == "user" else f"[{message['role']}]\n{said}"
