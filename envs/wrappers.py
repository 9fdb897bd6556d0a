"""`TokenEnv`: a text environment whose actions and observations are token ids."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, SupportsFloat, Unpack

import gymnasium
import numpy as np
from gymnasium.utils import RecordConstructorArgs

from rllm_gym.envs.text_space import REQUEST, check_text_env
from rllm_gym.envs.token_level import CHAT_OPTIONS, MOST_TURNS, TokenLevel, TokenOptions, check_action, make_info
from rllm_gym.spaces import TokenSequence
from rllm_gym.tokens import Conversation
from rllm_gym.tool_calls import ToolCalls, ToolConversation, tool_calls
from rllm_gym.types import CONTEXT_TURNS, REPLIES, TokenIds


class TokenEnv(TokenLevel, gymnasium.Wrapper[TokenIds, TokenIds, str, str], RecordConstructorArgs):
    """Give a text environment (`gymnasium.Env[str, str]`) token ids for actions and observations.

    Observation: the ids that the environment adds to the stream. At reset these are the rendered system prompt
    (`env.unwrapped.system_prompt`, if there is one), the turns that stand before the task (`env.unwrapped.preamble`, if
    there are any), the task and the generation prompt; at a step the rendered reply and the generation prompt. The
    observation of a step that terminates has no generation prompt; that of a step which an outer `TimeLimit` truncates
    has one, since this wrapper cannot know.

    Action: the ids that the policy sampled, end-of-turn token included. If that is missing (the turn was cut by a
    limit on tokens), it opens the next observation.

    Joined in order, observation 0, action 0, observation 1, ... are what the chat template renders for
    `info["messages"]`, and they are the training sequence. Nothing that was sampled is ever encoded again. What the
    environment says is plain text: special tokens spelt out in it stay text.

    Neither the environment nor the policy gets control characters (other than tab and newline) or lone surrogates to
    read: they are taken out of the text that an action says before the environment gets it (its ids and its message
    stay as sampled), and out of what the environment says. What the environment says beyond `max_tokens` is cut off,
    and `[... 1234 more characters were cut off]` stands in its place; most of a text that is far too long is never
    tokenized.

    Info: the environment's own, and `messages`: the conversation so far, a new list at every call.

    An environment that says in `info["rllm_gym/context_turns"]` which of its turns (counted from 0, the last one among
    them) the policy shall still read, as an `AgentEnv` does, has the history rewritten where that leaves one out: then
    the observation is a whole new prompt, of the first observation and those turns' actions and replies, all as they
    were sampled and rendered. `info["rllm_gym/num_repeated_tokens"]` are the tokens at its beginning that came before.
    So it is, too, where the chat template rewrites what was said (`ChatTokenizer.history` is "as_template"). `messages`
    remain the whole conversation; from then on `info["rllm_gym/context_messages"]` are those that the policy reads,
    where it is not all.

    An environment with `tools` (an `AgentEnv` with the format of that name) has the chat template tell the policy of
    them. Calls are read as the model's family writes them, and answered in the tool role, see `ToolCalls`.

    `env.unwrapped` is the text environment.

    Args:
        env: the text environment.
        options: see `TokenOptions`.
    """

    def __init__(self, env: gymnasium.Env[str, str], **options: Unpack[TokenOptions]):
        check_text_env(env, "TokenEnv")
        self._take_options(env, options)
        recorded = dict(self.options)
        if recorded["tokenizer"] is not None and not isinstance(recorded["tokenizer"], str | Path):
            # It compares and copies by value, unlike a Hugging Face tokenizer.
            recorded |= {"tokenizer": self.chat, **dict.fromkeys(CHAT_OPTIONS)}
        RecordConstructorArgs.__init__(self, **recorded)
        gymnasium.Wrapper.__init__(self, env)
        if hasattr(env.unwrapped, "count_tokens"):  # an environment that cuts what it says to a budget
            env.unwrapped.count_tokens = self.chat.count_tokens
        kept_turns = env.get_wrapper_attr("max_kept_turns") if env.has_wrapper_attr("max_kept_turns") else None
        self.calls = self._find_calls()
        history = self.chat.history if self.calls is None else self.calls.history
        if kept_turns is None and history == "as_template":
            kept_turns = MOST_TURNS
        longest = self.max_tokens * (1 + 2 * (kept_turns or 0))  # a rewritten prompt: the opening, actions and replies
        self.observation_space = TokenSequence(self.chat.vocab_size, longest)
        self.action_space = self._actions = TokenSequence(self.chat.vocab_size, self.max_tokens)
        self._conversation: Conversation | None = None

    def encode_action(self, text: str) -> TokenIds:
        """Return the action that says `text`, as an expert would: its ids and the end-of-turn token."""
        return np.asarray((self.calls or self.chat).encode_action(text), np.int64)

    def _find_calls(self) -> ToolCalls | None:
        """Return how the policy calls the environment's tools; None where it has none."""
        functions = self.env.get_wrapper_attr("tools") if self.env.has_wrapper_attr("use_tool_calls") else []
        if not functions:
            return None
        calls = tool_calls(self.chat, functions, self.env.get_wrapper_attr("agent").tool_parser)
        self.env.get_wrapper_attr("use_tool_calls")(calls)
        return calls

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[TokenIds, dict[str, Any]]:
        text, info = self.env.reset(seed=seed, options=options)
        check_info(info, self)
        said: dict[str, Any] = {
            name: self.env.get_wrapper_attr(name)
            for name in ("system_prompt", "preamble")
            if self.env.has_wrapper_attr(name)
        }
        self.calls = self._find_calls()  # a task may have functions of its own
        self._conversation = ToolConversation(self.calls, **said) if self.calls else Conversation(self.chat, **said)
        request = info.get(REQUEST, "")
        observation = self._hear(self._conversation, text, who=self, request=request)
        return observation, self._with_messages(info)

    def step(self, action: Sequence[int] | TokenIds) -> tuple[TokenIds, SupportsFloat, bool, bool, dict[str, Any]]:
        if self._conversation is None:
            raise gymnasium.error.ResetNeeded("TokenEnv: step comes after reset; got a step before any. Call reset().")
        text = self._read_action(self._conversation, check_action(action, self._actions, self))
        reply, reward, terminated, truncated, info = self.env.step(text)
        check_info(info, self)
        observation = self._hear(
            self._conversation,
            reply,
            terminated=terminated,
            who=self,
            request=info.get(REQUEST, ""),
            kept=info.get(CONTEXT_TURNS),
            replies=info.get(REPLIES, ()),
        )
        return observation, reward, terminated, truncated, self._with_messages(info)

    def _with_messages(self, info: dict[str, Any]) -> dict[str, Any]:
        said = {key: value for key, value in info.items() if key not in (REQUEST, CONTEXT_TURNS, REPLIES)}
        return {**said, **make_info(self._conversation)}


def check_info(info: Any, who: Any) -> None:
    """Raise TypeError where an environment's info is none."""
    if not isinstance(info, dict):
        raise TypeError(f"{who}: an info must be a dictionary; got {info!r:.200}. Return one.")
