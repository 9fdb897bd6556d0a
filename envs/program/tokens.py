"""Program-v0 at the token level: each request is a prompt, in which what was sampled keeps its ids."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, SupportsFloat, Unpack

import gymnasium
import numpy as np
from jinja2 import TemplateError

from rllm_gym.envs.program.requests import ModelRequest, RequestError
from rllm_gym.envs.text_space import UNREADABLE
from rllm_gym.envs.token_level import MOST_TURNS, TokenOptions, check_action
from rllm_gym.envs.wrappers import TokenEnv
from rllm_gym.errors import ConfigError
from rllm_gym.spaces import TokenSequence
from rllm_gym.tokens import first_of
from rllm_gym.tool_calls import Parsed, choose_parser, load_parser, parse
from rllm_gym.types import CONTEXT_MESSAGES, NUM_REPEATED_TOKENS, Logps, TokenIds


class ProgramTokenEnv(TokenEnv):
    """Give `ProgramEnv` token ids for actions and observations, as `TokenEnv` does for other environments.

    A request that goes on from the last answer, with nothing rewritten, adds to the context: the observation is what
    it adds. Any other one begins a context of its own, and the observation is its whole prompt; there, too, the turns
    of the model's own keep the ids that were sampled, wherever the chat template keeps their text.
    """

    def __init__(self, env: gymnasium.Env[str, str], **options: Unpack[TokenOptions]) -> None:
        if env.has_wrapper_attr("max_kept_turns"):
            raise ConfigError("Program-v0: the program says itself how turns are written; got agent. Leave it out.")
        super().__init__(env, **options)
        self._most_tokens = self.max_tokens * (1 + 2 * MOST_TURNS)  # of a prompt
        self.observation_space = TokenSequence(self.chat.vocab_size, self._most_tokens)
        program: Any = env.unwrapped
        program.check_request, program.read_text = self._check, self._read
        self._program = program
        self._parser: Any = None  # for `_tools`: some families write arguments without their types
        self._tools: Sequence[Any] = ()
        self._logp: Sequence[float] | None = None  # of the next action's tokens
        self._actions_taken: list[list[int]] = []
        self._said: list[dict[str, str]] = []
        self._context: list[int] = []  # what the policy has read and written
        self._prompt: list[int] = []  # of the request that waits
        self._num_before = 0

    @property
    def turn_limits(self) -> tuple[tuple[str, ...], int | None]:
        """The texts that end an answer, and its most tokens, as the request has them."""
        request = self._program.request
        return (self.stop, None) if request is None else ((*self.stop, *request.stop), request.max_tokens)

    def take_logps(self, logp: Logps) -> None:
        """Hear the log-probabilities of the next action's tokens, which a request may ask for."""
        self._logp = [float(value) for value in logp]

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[TokenIds, dict[str, Any]]:
        self._actions_taken, self._said, self._context = [], [], []
        text, info = self.env.reset(seed=seed, options=options)
        return self._observe(text, info)

    def step(self, action: Sequence[int] | TokenIds) -> tuple[TokenIds, SupportsFloat, bool, bool, dict[str, Any]]:
        request = self._program.request
        if request is None:
            raise gymnasium.error.ResetNeeded("TokenEnv: step comes after reset; got a step before any. Call reset().")
        ids = [int(i) for i in check_action(action, self._actions, self)]
        said = self.chat.said(ids)
        self._actions_taken.append(self.chat.without_end(ids))
        self._said.append({"role": "assistant", "content": said})
        first = first_of(said, (*self.stop, *request.stop))
        is_ended = first is not None or len(self.chat.without_end(ids)) < len(ids)
        self._program.finish_reason = "stop" if is_ended else "length"
        ended_by = "" if first is None else said[slice(*first)]
        self._program.stopped_by = ended_by if ended_by in request.stop else ""
        self._program.usage = (len(self._prompt), len(ids))
        logp, self._logp = self._logp, None
        if logp is not None and len(logp) == len(ids):
            kept = self._actions_taken[-1]
            self._program.token_logps = tuple((self.chat.decode([i]), p) for i, p in zip(kept, logp, strict=False))
        self._context = self._prompt + ids
        # A text that ends it is the turn's; the program gets what is before.
        given = said if first is None else said[: first[0]]
        text, reward, terminated, truncated, info = self.env.step(UNREADABLE.sub("", given))
        if terminated or truncated:
            return np.zeros(0, np.int64), reward, terminated, truncated, {**info, "messages": list(self._said)}
        observation, info = self._observe(text, info)
        return observation, reward, terminated, truncated, info

    def cut_short(self) -> tuple[float, dict[str, Any]]:
        """End the program, see `ProgramEnv.cut_short`."""
        reward, info = self._program.cut_short()
        return reward, {**info, "messages": list(self._said)}

    def _observe(self, text: str, info: dict[str, Any]) -> tuple[TokenIds, dict[str, Any]]:
        """Return the tokens that the policy reads of the request that waits, and the info."""
        self._said.append({"role": "user", "content": UNREADABLE.sub("", text)})
        told = {**info, "messages": list(self._said), CONTEXT_MESSAGES: list(self._program.request.messages)}
        read = self._context
        if read and self._prompt[: len(read)] == read and len(self._prompt) > len(read):
            return np.asarray(self._prompt[len(read) :], np.int64), told
        if read:
            told[NUM_REPEATED_TOKENS] = self._num_before
        return np.asarray(self._prompt, np.int64), told

    def _check(self, request: ModelRequest) -> None:
        """Render the prompt of a request.

        Raises:
            RequestError: it cannot be.
        """
        if request.tools:
            self._need_parser(request.tools)
        messages = _readable(request.messages)
        turns = [message["content"] for message in self._said if message["role"] == "assistant"]
        for k, turn in request.own_turns.items():
            messages[k]["content"] = turns[turn]  # with what the program did not get: a text that ended it
        sampled = {k: self._actions_taken[turn] for k, turn in request.own_turns.items()}
        try:
            ids, num_before = self.chat.encode_turns(
                messages, sampled, add_generation_prompt=True, tools=_readable(request.tools)
            )
        except (TemplateError, TypeError, ValueError) as error:
            raise RequestError(f"the chat template refuses these messages: {error!s:.300}") from error
        if len(ids) > self._most_tokens:
            raise RequestError(f"a prompt may have {self._most_tokens} tokens; got {len(ids)}.")
        self._prompt, self._num_before = ids, num_before if sampled else 1

    def _need_parser(self, tools: Sequence[Any]) -> None:
        if not self.chat.takes_tools:
            raise RequestError("the model's chat template knows no tools. Leave tools out.", code="unsupported")
        if self._parser is None or tools != self._tools:
            name = self._program.tool_parser or choose_parser(self.chat)
            if name is None:
                raise RequestError("it is not known how the model writes tool calls; set tool_parser.", 501)
            try:
                self._parser, self._tools = load_parser(name, self.chat.tokenizer, tools), tools
            except ConfigError as error:
                raise RequestError(str(error), 501, "unsupported") from error

    def _read(self, request: ModelRequest, text: str) -> Parsed:
        return parse(self._parser, text) if request.tools else Parsed(text, [])


def _readable(value: Any) -> Any:
    """Return values without what no tokenizer encodes, see `UNREADABLE`."""
    if isinstance(value, str):
        return UNREADABLE.sub("", value)
    if isinstance(value, list | tuple):
        return [_readable(one) for one in value]
    return {key: _readable(one) for key, one in value.items()} if isinstance(value, dict) else value
