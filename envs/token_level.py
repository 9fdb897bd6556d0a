"""The token level of an environment, of one agent or of several: its options, and what they do.

Loads tokenizers and Jinja only where an environment is made: the text level, too, must know the options' names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

import numpy as np

from rllm_gym.envs.text_space import UNREADABLE
from rllm_gym.errors import ConfigError, EnvError, nearest
from rllm_gym.types import CONTEXT_MESSAGES, NUM_REPEATED_TOKENS, TokenIds

if TYPE_CHECKING:
    from rllm_gym.spaces import TokenSequence
    from rllm_gym.tokens import ChatTokenizer, Conversation

MAX_TOKENS = 32_768  # as many as a context of Qwen2.5 holds
MOST_TURNS = 64  # that the space of observations has room for, where a prompt has all of them
CHAT_OPTIONS = ("chat_template", "chat_template_kwargs", "template_date")  # of `ChatTokenizer`, beside its tokenizer
_CHARS_PER_TOKEN = 4  # of English text


class TokenOptions(TypedDict, total=False):
    """The options of `TokenEnv`, and of all that makes one; one that is None, or left out, is the default.

    Args:
        tokenizer: a Hugging Face tokenizer with a chat template, by object, name or path; None is the shipped one.
        chat_template: replaces the tokenizer's template.
        chat_template_kwargs: variables of the template, such as `enable_thinking`; None is none.
        template_date: today, for a template that writes it, as 2026-01-31; None is 2026-01-01.
        max_tokens: bound on one action and on what is added after one; None is 32,768. A bound without room even for
            the system prompt and the template raises `EnvError` at reset.
        stop: texts that end a turn; None is the environment's own (`env.unwrapped.stop`, if there are any). The
            environment reads an action up to the first of them.
    """

    tokenizer: Any
    chat_template: str | Path | None
    chat_template_kwargs: Mapping[str, Any] | None
    template_date: str | None
    max_tokens: int | None
    stop: Sequence[str] | None


TOKEN_OPTIONS = tuple(TokenOptions.__annotations__)


class TokenLevel:
    """The part of `TokenEnv` and `TokenMultiAgentEnv` that is the same: what an option does, it does in both.

    Attributes:
        options: all of `TokenOptions`, as they were given.
        chat: the `ChatTokenizer`.
        max_tokens: bound on one action and on what is added after one.
        stop: texts that end a turn.
    """

    options: dict[str, Any]
    chat: ChatTokenizer
    max_tokens: int
    stop: tuple[str, ...]

    def _take_options(self, env: Any, options: TokenOptions) -> None:
        """Set the attributes.

        Raises:
            ConfigError: an option cannot be used.
        """
        from rllm_gym.tokens import chat_tokenizer

        who = type(self).__name__
        for name in options:
            if name not in TOKEN_OPTIONS:
                raise ConfigError(
                    f"{who}: takes the options {', '.join(TOKEN_OPTIONS)}; got {name!r}. "
                    f"Did you mean {nearest(name, TOKEN_OPTIONS)!r}?"
                )
        given: dict[str, Any] = {**dict.fromkeys(TOKEN_OPTIONS), **options}
        self.options = given
        self.max_tokens = _check_max_tokens(given["max_tokens"], who)
        self.chat = chat_tokenizer(given["tokenizer"], **{name: given[name] for name in CHAT_OPTIONS})
        self.stop = _read_stop(env, given["stop"])

    @property
    def end_of_turn_id(self) -> int:
        """The token that ends an action."""
        return self.chat.end_of_turn_id

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """Tokens after which a sampler should stop."""
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
        return np.asarray(self.chat.encode_action(text), np.int64)

    def _read_action(self, conversation: Conversation, action: Sequence[int] | TokenIds) -> str:
        """Record an action in a conversation; return the text that the environment gets."""
        from rllm_gym.tokens import end_of_first

        said = conversation.act(action)
        return UNREADABLE.sub("", said[: end_of_first(said, self.stop)])

    def _hear(
        self,
        conversation: Conversation,
        text: Any,
        *,
        terminated: bool = False,
        who: Any,
        request: str = "",
        kept: Sequence[int] | None = None,
        replies: Sequence[str] = (),
    ) -> TokenIds:
        """Return the ids that an environment's text adds to a conversation, after making it readable and no longer than
        `max_tokens`.

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
        text = _shorten(text, self.max_tokens, lambda words: count(words + request)) + request
        if not is_first:
            ids = conversation.reply(text, terminated=terminated, kept=kept, replies=replies)
        else:
            ids = conversation.open(text, terminated=terminated)
        if len(ids) - conversation.num_repeated <= self.max_tokens:
            return ids
        raise EnvError(
            f"{who}: the system prompt and the chat template must leave room in max_tokens={self.max_tokens}; got "
            f"{len(ids)} tokens. Raise max_tokens, or shorten the system prompt."
        )


def make_info(conversation: Conversation | None) -> dict[str, Any]:
    """Return the info's entries on a conversation, see `TokenEnv`."""
    assert conversation is not None
    told: dict[str, Any] = {"messages": list(conversation.messages)}
    if conversation.num_repeated:
        told[NUM_REPEATED_TOKENS] = conversation.num_repeated
    if conversation.leaves_out_turns or conversation.is_told_of_calls:
        told[CONTEXT_MESSAGES] = conversation.context_messages
    return told


def _read_stop(env: Any, stop: Sequence[str] | None) -> tuple[str, ...]:
    """Return the texts that end a turn: those given, or else the environment's own."""
    found = getattr(getattr(env, "unwrapped", env), "stop", ()) if stop is None else stop
    if isinstance(found, str) or not all(isinstance(text, str) and text for text in found):
        raise ConfigError(f"stop: must be a list of texts, like ['</search>']; got {found!r}. Correct it.")
    return tuple(found)


def _check_max_tokens(max_tokens: int | None, who: str) -> int:
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
