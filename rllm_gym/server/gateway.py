"""A policy behind the endpoint of programs: whoever asks it holds a conversation, and that is an episode."""

from __future__ import annotations

import contextlib
import json
import math
import queue
import secrets
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import gymnasium
from starlette.requests import Request

from rllm_gym.data.writer import Recorder
from rllm_gym.envs.base import StepResult
from rllm_gym.envs.program.conversation import ConversationEnv, note_of_replaced, read_reward
from rllm_gym.envs.program.endpoint import SESSION, Endpoint, Session, error_body, serve_in_thread
from rllm_gym.envs.program.requests import ModelRequest, OwnTurns, RequestError, prefix_keys
from rllm_gym.envs.program.tokens import ProgramTokenEnv
from rllm_gym.errors import ConfigError, EnvError
from rllm_gym.evaluation.policy import Policy, find_policy, playing_config
from rllm_gym.rollout.environments import EnvironmentSpec
from rllm_gym.rollout.loop import RolloutLoop
from rllm_gym.server.app import Binding, guarded, listen
from rllm_gym.tokens import ChatTokenizer
from rllm_gym.types import DEFAULT_MODULE, Engine, EpisodeGroup, SamplingParams, TaskGroup
from rllm_gym.viewer.runs import GATEWAY

TRAJECTORIES = "trajectories"  # in the folder of what is recorded
MAX_PARALLEL = 8  # requests of one conversation that may wait at once
MAX_TURNS = 200  # of one conversation
MAX_NAME_CHARS = 200
MODEL_CONTEXT, MODEL_ANSWER = 16_384, 1024  # tokens, where neither a run nor the command says
WAIT_S = 0.1  # between two looks for what has begun or lain idle


def ended() -> RequestError:
    """Return the answer of a conversation that has ended; the SDKs ask again by themselves."""
    return RequestError("this conversation has just ended. Ask again: that begins another one.", 503, "has_ended")


def guards_error(path: str, status: int, why: str) -> Any:
    """Return the body of an error before any request is read, as the SDKs know it."""
    codes = {401: "invalid_api_key", 403: "forbidden", 413: "too_large"}
    return error_body(path, RequestError(why, status, codes[status]))


class Conversation(Session):
    """One conversation of a gateway.

    Attributes:
        own_turns: what the policy has said in it.
        last_s: when it was last asked or answered, by the monotonic clock.
    """

    def __init__(self, name: str) -> None:
        super().__init__(MAX_PARALLEL, name)
        self.own_turns = OwnTurns()
        self.last_s = time.monotonic()

    def leave(self) -> None:
        super().leave()
        self.last_s = time.monotonic()


class Gateway(Endpoint):
    """The endpoint's conversations: which one a request belongs to, when one begins, and when it ends.

    A request belongs to the conversation that its header `X-Session-ID` names, or, without one, to that whose answer
    its messages go on from; any other begins a conversation. One ends when its reward is posted, when it has lain idle,
    when others need its place, or with the gateway.

    Args:
        model: the name that clients see.
        max_sessions: conversations that are open at once.
        session_ttl_s: seconds after which an idle one ends.
        has_rewards: rewards are posted.

    Attributes:
        begun: conversations that have begun and are no episodes yet.
        to_play: those of the episodes that begin.
        max_sessions: see above.
    """

    def __init__(self, model: str, *, max_sessions: int, session_ttl_s: float, has_rewards: bool) -> None:
        super().__init__()
        self.model, self.has_rewards = model, has_rewards
        self.begun: queue.SimpleQueue[Conversation] = queue.SimpleQueue()
        self.to_play: queue.SimpleQueue[Conversation] = queue.SimpleQueue()
        self.max_sessions, self._session_ttl_s = max_sessions, session_ttl_s
        self._open: dict[str, Conversation] = {}
        self._lock = threading.Lock()
        self.is_ending = False

    def enter_by(self, request: Request, asked: ModelRequest) -> Session:
        name = self._name(request)
        with self._lock:
            if self.is_ending:
                raise RequestError("the gateway ends.", 503, "ending")
            found = self._open.get(name) if name else self._continued(asked)
            conversation = found or self._begin(name or f"s-{secrets.token_hex(12)}")
            conversation.enter()
        return conversation

    def take_reward(self, request: Request, reward: Any) -> None:
        if not self.has_rewards:
            raise RequestError("no rewards are taken here. Start the gateway with --rewards.", code="unsupported")
        try:
            read_reward(reward)
        except ValueError as error:
            raise RequestError(f"{error}.") from error
        name = self._name(request)
        with self._lock:
            if (conversation := self._open.get(name)) is None:
                raise RequestError(f"{SESSION} must name a conversation that is open; got {name!r}.", 404, "not_found")
            conversation.posted = reward
            self._end(conversation)

    def end(self, conversation: Conversation) -> None:
        """End a conversation once what waits in it is answered."""
        with self._lock:
            self._end(conversation)

    def end_idle(self) -> None:
        """End the conversations that have lain idle for too long, and all of them where the gateway ends."""
        now_s = time.monotonic()
        with self._lock:
            for conversation in list(self._open.values()):
                is_idle = not conversation.num_waiting and now_s - conversation.last_s > self._session_ttl_s
                if is_idle or self.is_ending:
                    self._end(conversation)

    def _name(self, request: Request) -> str:
        name = request.headers.get(SESSION, "")
        if len(name) > MAX_NAME_CHARS:
            raise RequestError(f"{SESSION} may have {MAX_NAME_CHARS} characters; got {len(name)}.")
        return name

    def _continued(self, request: ModelRequest) -> Conversation | None:
        """Return the conversation whose answer the messages go on from, of several the one that waits for that."""
        keys = prefix_keys(request.messages)
        found: tuple[tuple[int, bool], Conversation] | None = None
        for conversation in self._open.values():
            place = conversation.own_turns.last_in(keys)
            rank = place, place >= 0 and conversation.own_turns.newest == keys[place] and not conversation.num_waiting
            if place >= 0 and (found is None or rank > found[0]):
                found = rank, conversation
        return None if found is None else found[1]

    def _begin(self, name: str) -> Conversation:
        if len(self._open) >= self.max_sessions:
            idle = [conversation for conversation in self._open.values() if not conversation.num_waiting]
            if not idle:
                raise RequestError(
                    f"at most {self.max_sessions} conversations may wait for an answer (--max-sessions).", 429, "full"
                )
            self._end(min(idle, key=lambda conversation: conversation.last_s))
        conversation = self._open[name] = Conversation(name)
        self.begun.put(conversation)
        return conversation

    def _end(self, conversation: Conversation) -> None:
        if self._open.pop(conversation.name, None) is conversation:
            conversation.end(ended())
            conversation.events.put(None)


class GatewayEnv(ConversationEnv):
    """A conversation of a gateway.

    Reward:
        0.0, and at the end what was posted. Without rewards it is 0.0, and `is_success` is None.

    Episode end:
        Terminated when the conversation ends.

    Info keys:
        `item_id` ("conversation_" and a hash of the first request's messages, by which equal tasks are known),
        `category` ("conversation"), `is_success`, `is_invalid_action` (False), `session` (str, its name), and those of
        `ProgramEnv`.

    Args:
        gateway: whose conversations these are.
        tool_parser: see `ProgramEnv`.
    """

    name = "conversation"
    num_items = 1

    def __init__(self, gateway: Gateway, *, tool_parser: str | None = None) -> None:
        super().__init__(tool_parser=tool_parser)
        self._gateway, self._task = gateway, ""

    def split_indices(self, split: str) -> Sequence[int]:
        return [0]

    @property
    def category(self) -> str:
        return self.name

    def reset_item(self, index: int) -> str:
        self._leave()
        self._begin()
        self._session = self._gateway.to_play.get_nowait()
        self._own_turns, self._task = self._session.own_turns, ""
        return self._wait().reply

    def cut_short(self) -> tuple[float, dict[str, Any]]:
        """End a conversation that has had its turns; return its reward and the info."""
        self._gateway.end(self._session)
        return self._ended().reward, self._info()

    def abandon(self) -> None:
        """End the conversation, for whose next request nobody waits any more; for another thread."""
        if self._session is not None:
            self._session.events.put(None)

    def close(self) -> None:
        self._leave()
        super().close()

    def _info(self) -> dict[str, Any]:
        judged = {} if self._gateway.has_rewards else {"is_success": None}
        return {**super()._info(), **judged, "item_id": f"{self.name}_{self._task}", "session": self._session.name}

    def _wait(self) -> StepResult:
        while (call := self._session.events.get()) is not None:
            if (step := self._take(call)) is not None:
                self._task = self._task or prefix_keys(call.request.messages)[-1].hex()[:12]
                return step
            if not self._num_turns and self._session.events.empty():  # nobody knows of what has nothing in it
                self._gateway.end(self._session)
        return self._ended()

    def _ended(self) -> StepResult:
        posted = self._session.posted
        if not self._num_turns:
            self._fail("it ended without an answer")
        if posted is None and self._gateway.has_rewards:
            self._fail("it ended without a reward")
        reward, self.is_success = (0.0, False) if posted is None else read_reward(posted)
        self._leave()
        return StepResult("(The conversation has ended.)", reward, is_over=True, is_invalid=False)

    def _leave(self) -> None:
        """End the conversation, and refuse what waits in it."""
        if self._session is None:
            return
        self._gateway.end(self._session)
        self._refuse_waiting(ended())
        self._session.refuse_all()

    def _fail(self, why: str) -> NoReturn:
        self._leave()
        raise EnvError(f"gateway: conversation {self._session.name}: {why}.")


class GatewayTokenEnv(ProgramTokenEnv):
    """A conversation at the token level, which refuses a prompt that leaves no room for an answer."""

    def __init__(self, env: gymnasium.Env[str, str], *, max_prompt_tokens: int, **options: Any) -> None:
        super().__init__(env, **options)
        self._max_prompt_tokens = max_prompt_tokens

    def _check(self, request: ModelRequest) -> None:
        super()._check(request)
        if len(self._prompt) > self._max_prompt_tokens:
            raise RequestError(
                f"a prompt may have {self._max_prompt_tokens} tokens here; got {len(self._prompt)}.",
                code="context_length_exceeded",
            )


def serve(
    source: str,
    binding: Binding,
    *,
    record: Path | None,
    has_rewards: bool,
    max_sessions: int,
    session_ttl_s: float,
    options: Mapping[str, Any],
    module: str | None = None,
    say: Callable[[str], None] = print,
) -> None:
    """Let a policy answer until SIGTERM or Ctrl-C; the second one ends at once.

    Args:
        source: a checkpoint, a run, or a Hugging Face model.
        record: folder of what is said.
        options: of the sampler, see `playing_config`; and `tool_parser`.
        module: which policy, where a checkpoint holds several.

    Raises:
        ConfigError: the policy is not found, or the folder holds another one's conversations.
        OSError: the address cannot be listened on.
    """
    policy = find_policy(source)
    options = dict(options)
    tool_parser = options.pop("tool_parser", None)
    config = playing_config(policy, options)[1]
    if policy.checkpoint is None:
        config.update_from_dict({**_room_of(policy.name, config, options), **options})
    if config.engine == "openai":
        raise ConfigError("gateway: the engine openai asks an endpoint itself; got it here. Set engine: vllm.")
    with contextlib.ExitStack() as stack:
        recorder = None
        if record is not None:
            recorder = Recorder(_folder_of(record, policy), [EnvironmentSpec("gateway", "gateway")])
            stack.callback(recorder.close)
        listening, url = stack.enter_context(listen(binding))
        gateway = Gateway(
            Path(policy.name).name, max_sessions=max_sessions, session_ttl_s=session_ttl_s, has_rewards=has_rewards
        )
        chat, engine = _sampler(_export_model(policy, module, stack), config, max_sessions)
        stack.callback(engine.close)
        loop = make_loop(
            gateway, chat, engine, params=config.sampling_params, max_model_len=config.max_model_len, stop=config.stop,
            tool_parser=tool_parser,
        )  # fmt: skip
        stack.callback(loop.close)
        stack.enter_context(_ends_on_signals(gateway))
        stack.callback(serve_in_thread(guarded(gateway.app, binding, error_body=guards_error), listening))
        say(f"serving {policy.name} at {url}   (OPENAI_BASE_URL={url}/v1, ANTHROPIC_BASE_URL={url})")
        note, num_recorded, num_failed = "", 0, 0
        for group in played(gateway, loop, drain_s=binding.drain_s):
            if not note and (note := note_of_replaced(episode.info for episode in group.episodes)):
                say(note)
            failed = [episode for episode in group.failed if episode.streams]
            num_failed += len(failed)
            if recorder is not None:
                num_recorded += len(recorder.append([*group.episodes, *failed], train_step=None))
        if record is not None:
            say(f"{num_recorded} conversations recorded in {record}, {num_failed} of them failed")


def make_loop(
    gateway: Gateway,
    chat: ChatTokenizer,
    engine: Engine,
    *,
    params: SamplingParams,
    max_model_len: int,
    stop: Sequence[str] | None = None,
    tool_parser: str | None = None,
) -> RolloutLoop:
    """Return the loop in which an engine answers a gateway's conversations."""

    def make_env(index: int) -> GatewayTokenEnv:
        env, room = GatewayEnv(gateway, tool_parser=tool_parser), max_model_len - params.max_new_tokens
        return GatewayTokenEnv(env, max_prompt_tokens=room, tokenizer=chat, stop=stop)

    num_envs = 2 * gateway.max_sessions  # those that have just ended are not done yet
    return RolloutLoop(
        make_env,
        {DEFAULT_MODULE: engine},
        module_of=lambda agent_id, episode: DEFAULT_MODULE,
        num_envs=num_envs,
        num_env_workers=num_envs,
        params=params,
        max_model_len=max_model_len,
        max_retries=0,
    )


def played(gateway: Gateway, loop: RolloutLoop, *, drain_s: float) -> Iterator[EpisodeGroup]:
    """Play conversations as they begin, until the gateway ends; yield each once it has ended."""
    run = int(time.time())  # so that the seeds and names of one start are not those of another
    num_begun, end_s = 0, math.inf

    def take(conversation: Conversation) -> None:
        nonlocal num_begun
        gateway.to_play.put(conversation)
        loop.submit([TaskGroup((0, run, num_begun), None, 1)], max_episode_steps=MAX_TURNS)
        num_begun += 1

    def look() -> None:
        nonlocal end_s
        if gateway.is_ending:
            end_s = min(end_s, time.monotonic() + drain_s)
        gateway.end_idle()
        with contextlib.suppress(queue.Empty):
            while True:
                take(gateway.begun.get_nowait())

    while time.monotonic() < end_s:
        look()
        if not loop.num_unfinished_episodes:
            if gateway.is_ending:
                break
            with contextlib.suppress(queue.Empty):
                take(gateway.begun.get(timeout=WAIT_S))
        yield from loop.finished_groups(between_steps=look, pauses=lambda: time.monotonic() >= end_s)


@contextlib.contextmanager
def _ends_on_signals(gateway: Gateway) -> Iterator[None]:
    """Have the first SIGTERM or Ctrl-C end the gateway, and the second one this process."""

    def handle(number: int, frame: Any) -> None:
        if gateway.is_ending:
            raise KeyboardInterrupt(number)
        gateway.is_ending = True

    before = {number: signal.signal(number, handle) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _folder_of(record: Path, policy: Policy) -> Path:
    """Return where a policy's conversations are stored; another one's have other tokens."""
    note, mine = record / GATEWAY, {"model": policy.name}
    theirs = json.loads(note.read_text(encoding="utf-8")) if note.is_file() else mine
    if theirs != mine:
        raise ConfigError(
            f"gateway: --record must be a new folder, or one of this policy, {policy.name}; got {str(record)!r}, which "
            f"has conversations of {theirs.get('model')}. Choose another one."
        )
    if record.exists() and (not record.is_dir() or (any(record.iterdir()) and not note.is_file())):
        raise ConfigError(f"gateway: --record must be a new folder; got {str(record)!r}. Choose another one.")
    record.mkdir(parents=True, exist_ok=True)
    note.write_text(json.dumps(mine) + "\n", encoding="utf-8")
    return record / TRAJECTORIES


def _export_model(policy: Policy, module: str | None, stack: contextlib.ExitStack) -> str:
    """Return a folder with the policy as a Hugging Face model."""
    from rllm_gym.evaluation.export import export_policy
    from rllm_gym.models import resolve_base_model

    if policy.checkpoint is None:
        return str(resolve_base_model(policy.name))
    folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="rllm_gym_gateway_"))
    export_policy(policy.checkpoint, Path(folder), module=module)
    return folder


def _room_of(model: str, config: Any, options: Mapping[str, Any]) -> dict[str, int]:
    """Return how long a model's conversations and answers may be where nobody says: a run's would be a game's."""
    from transformers import AutoConfig

    from rllm_gym.models import resolve_base_model

    found = AutoConfig.from_pretrained(str(resolve_base_model(model)), trust_remote_code=config.trust_remote_code)
    positions = getattr(found.get_text_config(), "max_position_embeddings", MODEL_CONTEXT)
    context = options.get("max_model_len", min(MODEL_CONTEXT, positions))
    return {"max_model_len": context, "max_new_tokens": min(MODEL_ANSWER, context // 4)}


def _sampler(model: str, config: Any, max_sessions: int) -> tuple[Any, Any]:
    """Return the tokenizer and the engine."""
    from transformers import AutoConfig

    from rllm_gym.rollout.engines import TRUST, engine_maker

    trusts = config.trust_remote_code
    vocab_size = AutoConfig.from_pretrained(model, trust_remote_code=trusts).get_text_config().vocab_size
    engine = engine_maker(config.engine)(
        model,
        dtype=config.weight_dtype,
        max_model_len=config.max_model_len,
        max_num_seqs=max_sessions,
        options={**({TRUST: True} if trusts else {}), **config.engine_options},
    )
    return ChatTokenizer(model, vocab_size=vocab_size, **config.chat_options), engine
