"""`TokenEnv`: a text environment whose actions and observations are token ids."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, SupportsFloat

import gymnasium
import numpy as np
from gymnasium.utils import RecordConstructorArgs

from rllm_gym.envs.text_space import REQUEST, UNREADABLE, check_text_env
from rllm_gym.errors import ConfigError, EnvError
from rllm_gym.spaces import TokenSequence
from rllm_gym.tokens import Conversation, chat_tokenizer, end_of_first
from rllm_gym.tool_calls import ToolCalls, ToolConversation, tool_calls
from rllm_gym.types import CONTEXT_MESSAGES, CONTEXT_TURNS, NUM_REPEATED_TOKENS, REPLIES, TokenIds

MAX_TOKENS = 32_768  # as many as a context of Qwen2.5 holds
MOST_TURNS = 64  # that the space of observations has room for, where a prompt has all of them
_CHARS_PER_TOKEN = 4  # of English text


class TokenEnv(gymnasium.Wrapper[TokenIds, TokenIds, str, str], RecordConstructorArgs):
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
        tokenizer: see `ChatTokenizer`; None takes the shipped one.
        chat_template: see `ChatTokenizer`; None takes the tokenizer's.
        chat_template_kwargs: see `ChatTokenizer`.
        template_date: see `ChatTokenizer`.
        max_tokens: bound on one action and on what is added after one; None is 32,768. A bound without room even for
            the system prompt and the template raises `EnvError` at reset.
        stop: texts that end a turn; None is the environment's own (`env.unwrapped.stop`, if there are any). The
            environment reads an action up to the first of them. See `turn_length`.

    Attributes:
        chat: the `ChatTokenizer`.
        end_of_turn_id: the token that ends an action.
        stop_ids: tokens after which a sampler should stop.
    """

    def __init__(
        self,
        env: gymnasium.Env[str, str],
        *,
        tokenizer: Any = None,
        chat_template: str | Path | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        template_date: str | None = None,
        max_tokens: int | None = None,
        stop: Sequence[str] | None = None,
    ):
        check_text_env(env, "TokenEnv")
        max_tokens = check_max_tokens(max_tokens, "TokenEnv")
        options: dict[str, Any] = {
            "chat_template": chat_template,
            "chat_template_kwargs": chat_template_kwargs,
            "template_date": template_date,
        }
        chat = chat_tokenizer(tokenizer, **options)
        if tokenizer is not None and not isinstance(tokenizer, str | Path):
            tokenizer, options = chat, {}  # compares and copies by value, unlike a Hugging Face tokenizer
        RecordConstructorArgs.__init__(self, tokenizer=tokenizer, **options, max_tokens=max_tokens, stop=stop)
        gymnasium.Wrapper.__init__(self, env)
        self.chat = chat
        if hasattr(env.unwrapped, "count_tokens"):  # an environment that cuts what it says to a budget
            env.unwrapped.count_tokens = chat.count_tokens
        self.max_tokens = max_tokens
        self.stop = stop_of(env, stop)
        kept_turns = env.get_wrapper_attr("max_kept_turns") if env.has_wrapper_attr("max_kept_turns") else None
        self.calls = self._find_calls()
        history = chat.history if self.calls is None else self.calls.history
        if kept_turns is None and history == "as_template":
            kept_turns = MOST_TURNS
        longest = max_tokens * (1 + 2 * (kept_turns or 0))  # a rewritten prompt: the opening, actions and replies
        self.observation_space = TokenSequence(chat.vocab_size, longest)
        self.action_space = self._actions = TokenSequence(chat.vocab_size, max_tokens)
        self._conversation: Conversation | None = None

    @property
    def end_of_turn_id(self) -> int:
        return self.chat.end_of_turn_id

    @property
    def stop_ids(self) -> tuple[int, ...]:
        return self.chat.stop_ids

    @property
    def turn_limits(self) -> tuple[tuple[str, ...], int | None]:
        """The texts that end a turn, and the most tokens that it may have."""
        return self.stop, None

    def turn_length(self, ids: Sequence[int] | TokenIds) -> int:
        """Return how many tokens of what was sampled are the action: those up to the one in which a stop text ends."""
        return self.chat.turn_length(ids, self.turn_limits)

    def early_end(self) -> Callable[[Sequence[int]], bool] | None:
        """Return the test whether the tokens so far are a turn by `turn_limits`; None without any."""
        return self.chat.early_end(self.turn_limits)

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
        observation = hear(self._conversation, text, max_tokens=self.max_tokens, who=self, request=request)
        return observation, self._with_messages(info)

    def step(self, action: Sequence[int] | TokenIds) -> tuple[TokenIds, SupportsFloat, bool, bool, dict[str, Any]]:
        if self._conversation is None:
            raise gymnasium.error.ResetNeeded("TokenEnv: step comes after reset; got a step before any. Call reset().")
        said = self._conversation.act(check_action(action, self._actions, self))
        text = UNREADABLE.sub("", said[: end_of_first(said, self.stop)])
        reply, reward, terminated, truncated, info = self.env.step(text)
        check_info(info, self)
        observation = hear(
            self._conversation,
            reply,
            terminated=terminated,
            max_tokens=self.max_tokens,
            who=self,
            request=info.get(REQUEST, ""),
            kept=info.get(CONTEXT_TURNS),
            replies=info.get(REPLIES, ()),
        )
        return observation, reward, terminated, truncated, self._with_messages(info)

    def _with_messages(self, info: dict[str, Any]) -> dict[str, Any]:
        said = {key: value for key, value in info.items() if key not in (REQUEST, CONTEXT_TURNS, REPLIES)}
        return {**said, **told_of(self._conversation)}


def check_info(info: Any, who: Any) -> None:
    """Raise TypeError where an environment's info is none."""
    if not isinstance(info, dict):
        raise TypeError(f"{who}: an info must be a dictionary; got {info!r:.200}. Return one.")


def told_of(conversation: Conversation | None) -> dict[str, Any]:
    """Return the info's entries on a conversation, see `TokenEnv`."""
    assert conversation is not None
    told: dict[str, Any] = {"messages": list(conversation.messages)}
    if conversation.num_repeated:
        told[NUM_REPEATED_TOKENS] = conversation.num_repeated
    if conversation.leaves_out_turns or conversation.is_told_of_calls:
        told[CONTEXT_MESSAGES] = conversation.context_messages
    return told


def stop_of(env: Any, stop: Sequence[str] | None) -> tuple[str, ...]:
    """Return the texts that end a turn: those given, or else the environment's own."""
    found = getattr(getattr(env, "unwrapped", env), "stop", ()) if stop is None else stop
    if isinstance(found, str) or not all(isinstance(text, str) and text for text in found):
        raise ConfigError(f"stop: must be a list of texts, like ['</search>']; got {found!r}. Correct it.")
    return tuple(found)


def check_max_tokens(max_tokens: int | None, who: str) -> int:
    """Return the bound on one action and on one observation, None being the default.

    Raises:
        ConfigError: it is none.
    """
    if max_tokens is None:
        return MAX_TOKENS
    if isinstance(max_tokens, bool) or not isinstance(max_tokens, int) or max_tokens < 1:
        raise ConfigError(
            f"{who}: max_tokens must be a positive integer; got {max_tokens!r}. Leave it out for {MAX_TOKENS}."
        )
    return max_tokens


def hear(
    conversation: Conversation,
    text: Any,
    *,
    terminated: bool = False,
    max_tokens: int,
    who: Any,
    request: str = "",
    kept: Sequence[int] | None = None,
    replies: Sequence[str] = (),
) -> TokenIds:
    """Return the ids that an environment's text adds to a conversation, after making it readable and no longer than
    `max_tokens`, see `TokenEnv`.

    Args:
        request: the end of the text that asks the policy for something, which is never cut off.
        kept: the turns that the policy reads on, see `Conversation.reply`.
        replies: see `Conversation.reply`.

    Raises:
        TypeError: the text is none.
        EnvError: there is no room for any text.
    """
    if not isinstance(text, str):
        raise TypeError(f"{who}: an observation must be a string; got {text!r:.200}. Put it into words.")
    chat, is_first = conversation.chat, not conversation.messages

    def count(text: str) -> int:
        if is_first:
            opening = conversation.opening(text)
            return len(chat.encode_chat(opening, add_generation_prompt=not terminated, tools=conversation.tools))
        return len(chat.encode_reply(text, add_generation_prompt=not terminated))

    text = UNREADABLE.sub("", text).removesuffix(request)
    text = _shorten(text, max_tokens, lambda words: count(words + request)) + request
    if not is_first:
        ids = conversation.reply(text, terminated=terminated, kept=kept, replies=replies)
    else:
        ids = conversation.open(text, terminated=terminated)
    if len(ids) - conversation.num_repeated <= max_tokens:
        return ids
    raise EnvError(
        f"{who}: the system prompt and the chat template must leave room in max_tokens={max_tokens}; got {len(ids)} "
        "tokens. Raise max_tokens, or shorten the system prompt."
    )


def _shorten(text: str, max_tokens: int, count: Callable[[str], int]) -> str:
    """Return the text, or as much of its beginning as `count` allows and a note."""
    if len(text.encode()) <= max_tokens // 2:  # a token has a byte at least; the other half is the template's
        return text
    if len(text) <= 2 * _CHARS_PER_TOKEN * max_tokens and count(text) <= max_tokens:
        return text
    kept = text[: _CHARS_PER_TOKEN * max_tokens]
    while True:
        shorter = f"{kept}\n[... {len(text) - len(kept)} more characters were cut off]"
        num_tokens = count(shorter)
        if num_tokens <= max_tokens or not kept:
            return shorter
        kept = kept[: int(0.95 * len(kept) * max_tokens / num_tokens)]


def check_action(action: Any, space: TokenSequence, who: Any) -> Any:
    """Return `action` if it is in `space`; what else a caller may have sent is named in one line."""
    if action in space:
        return action
    raise ValueError(
        f"{who}: an action must be at most {space.max_length} token ids in [0, {space.vocab_size}), as a 1-D integer "
        f"array or a list; got {_outline(action)}. Use the ids that were sampled, or encode_action(text)."
    )


def _outline(action: Any) -> str:
    if isinstance(action, np.ndarray) and action.size:
        extent = f", from {action.min()} to {action.max()}" if np.issubdtype(action.dtype, np.number) else ""
        return f"an array of shape {action.shape} and dtype {action.dtype}{extent}"
    if isinstance(action, list | tuple) and len(action) > 8:
        ids = [i for i in action if isinstance(i, int)]
        return f"{len(action)} items" + (f", integers from {min(ids)} to {max(ids)}" if ids else "")
    return repr(action)[:200]
