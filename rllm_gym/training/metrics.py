"""The metrics of a train step's or an evaluation's episodes: the table that `docs/metrics.md` shows, and the values."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from rllm_gym.infos import read
from rllm_gym.types import AGENT, DEFAULT_MODULE, Episode, Stream


class Metric(NamedTuple):
    """One row of the page: names that belong together, their unit, and their meaning in Markdown.

    A name with `<...>` stands for one name each.
    """

    names: tuple[str, ...]
    unit: str
    meaning: str


EPISODE_METRICS = (
    Metric(("episode_return_mean", "episode_return_min", "episode_return_max"), "", "sum of rewards, over all agents"),
    Metric(("episode_len_mean",), "env steps", ""),
    Metric(
        ("success_rate",),
        "share",
        "of episodes whose last `info` says `is_success`; with `screening_size`, here and of returns, of "
        "those that every task plays",
    ),
    Metric(("num_episodes", "num_episodes_lifetime"), "", ""),
    Metric(("num_env_steps_sampled", "num_env_steps_sampled_lifetime"), "env steps", ""),
    Metric(("num_failed_episodes",), "", "dropped after their retries: the environment failed"),
    Metric(("num_episode_retries",), "", ""),
    Metric(
        ("num_env_timeouts",),
        "",
        "attempts that failed since a call into the environment took longer than `env_timeout_s`; the log"
        " names the environment and the call",
    ),
    Metric(("num_turns_mean",), "turns", "of one agent in one episode"),
    Metric(("num_tokens_mean",), "tokens", "of one agent's stream, prompts and replies included"),
    Metric(
        ("num_samples_mean",),
        "",
        "training samples of one agent in one episode: 1, and one more for each time that its history was"
        " rewritten ([agents](agents.md#contexts))",
    ),
    Metric(
        ("repeated_token_fraction",),
        "",
        "share of the samples' tokens that only repeat what an earlier sample of the episode has read, where its"
        " history was rewritten",
    ),
    Metric(("num_attempts_mean",), "", "attempts of one agent at its task"),
    Metric(
        ("agent_episode_returns_mean/<agent>", "module_episode_returns_mean/<module>"),
        "",
        "what each agent, or each policy's agents, earned in an episode; of several agents alone",
    ),
    Metric(
        ("reward_<name>_mean",),
        "",
        "sum of a reward function over an episode, not weighted; where there are reward functions "
        "([agents](agents.md#reward-functions))",
    ),
    Metric(("num_sampled_tokens",), "tokens", "sampled in this train step"),
    Metric(("num_sampled_tokens_per_turn_mean",), "tokens", ""),
    Metric(
        ("invalid_action_fraction",),
        "share",
        'of turns whose action the environment could not act on (`info["is_invalid_action"]`)',
    ),
    Metric(
        ("useful_group_share",),
        "share",
        "of the groups (per task and agent) that were trained on with an advantage other than 0",
    ),
    Metric(
        ("illegal_rate",),
        "share",
        "of episodes that such an action has ended: of games, those lost by a forbidden move",
    ),
    Metric(
        ("num_role_markers_in_observations",),
        "",
        "how often an environment's text spells what the chat template writes at the beginning of a turn "
        "(`<|im_start|>assistant`, `USER:`): it stays ordinary text, but a model may take it for a turn",
    ),
    Metric(
        ("num_replaced_params",),
        "",
        "how often a program asked for a `temperature`, `top_p`, `seed` or `tool_choice` of its own and got the run's "
        "([programs](programs.md#the-endpoint))",
    ),
    Metric(("truncated_fraction",), "share", "of episodes that did not terminate; of these:"),
    Metric(("horizon_fraction", "context_limit_fraction"), "share", "ended by the horizon; by `max_model_len`"),
    Metric(("prefix_cache_hit_fraction",), "share", "of prompt tokens whose keys and values were in the cache"),
    Metric(("env_s_mean", "engine_s_mean"), "s", "per episode: in its environment; waiting for its completions"),
)


def episode_metrics(
    episodes: list[Episode], failed: list[Episode], *, only_playing: Collection[str] = ()
) -> dict[str, Any]:
    """Return the numbers under `env_runners/`; every one is finite, also without episodes.

    Returns of several agents are summed within an episode, as RLlib does. `EPISODE_METRICS` says what each is.
    Success and returns are of the episodes that every task plays, see `Episode.is_conditional`.

    Args:
        only_playing: modules that do not learn, such as opponents: their agents' success does not count.
    """
    streams: list[Stream] = [stream for episode in episodes for stream in episode.streams.values()]
    turns = [turn for stream in streams for turn in stream.turns]
    of_all_tasks = [episode for episode in episodes if not episode.is_conditional]
    returns = [float(sum(t.reward for s in episode.streams.values() for t in s.turns)) for episode in of_all_tasks]
    num_prompt_tokens = sum(_prompt_tokens(stream) for stream in streams)
    num_tokens = [sum(len(t.observation_ids) + len(t.action_ids) for t in stream.turns) for stream in streams]
    num_episodes = len(episodes)
    names = sorted({name for turn in turns for name in turn.rewards})

    def share(reason: str) -> float:
        return sum(episode.end_reason == reason for episode in episodes) / max(1, num_episodes)

    return {
        "episode_return_mean": _mean(returns),
        "episode_return_min": float(min(returns, default=0.0)),
        "episode_return_max": float(max(returns, default=0.0)),
        "episode_len_mean": _mean(episode.num_env_steps for episode in episodes),
        "success_rate": _mean(success_share(episode, only_playing) for episode in of_all_tasks),
        "num_turns_mean": _mean(len(stream.turns) for stream in streams),
        "num_tokens_mean": _mean(num_tokens),
        "num_samples_mean": _mean(stream.turns[-1].context_index + 1 for stream in streams if stream.turns),
        "repeated_token_fraction": sum(turn.num_repeated for turn in turns) / max(1, sum(num_tokens)),
        "num_attempts_mean": _mean(stream.turns[-1].attempt for stream in streams if stream.turns),
        "invalid_action_fraction": _mean(turn.is_invalid_action for turn in turns),
        "illegal_rate": _mean(
            any(_ended_it(stream, episode) for stream in episode.streams.values()) for episode in episodes
        ),
        "num_sampled_tokens_per_turn_mean": _mean(len(turn.action_ids) for turn in turns),
        "num_episodes": num_episodes,
        "num_failed_episodes": len(failed),
        "num_episode_retries": sum(episode.num_retries for episode in [*episodes, *failed]),
        "num_env_timeouts": sum(episode.num_env_timeouts for episode in [*episodes, *failed]),
        "num_env_steps_sampled": sum(episode.num_env_steps for episode in episodes),
        "num_role_markers_in_observations": sum(episode.num_role_markers for episode in episodes),
        "num_replaced_params": sum(_num_replaced(episode) for episode in episodes),
        "num_sampled_tokens": sum(len(turn.action_ids) for turn in turns),
        "truncated_fraction": share("horizon") + share("context_limit") + share("truncated"),
        "horizon_fraction": share("horizon"),
        "context_limit_fraction": share("context_limit"),
        "prefix_cache_hit_fraction": sum(turn.num_cached_tokens for turn in turns) / max(1, num_prompt_tokens),
        "env_s_mean": _mean(episode.timings.get("env_s", 0.0) for episode in episodes),
        "engine_s_mean": _mean(episode.timings.get("engine_s", 0.0) for episode in episodes),
        **_returns_by("agent", of_all_tasks),
        **_returns_by("module", of_all_tasks),
        **{f"reward_{name}_mean": sum(t.rewards.get(name, 0.0) for t in turns) / num_episodes for name in names},
    }


def _returns_by(what: str, episodes: Sequence[Episode]) -> dict[str, Any]:
    """Return the mean episode reward of each agent, or of each policy's agents, under RLlib's name."""
    streams = [stream for episode in episodes for stream in episode.streams.values()]
    names = [getattr(stream, f"{what}_id") for stream in streams]
    if set(names) <= {AGENT, DEFAULT_MODULE} and {stream.agent_id for stream in streams} <= {AGENT}:
        return {}
    totals = dict.fromkeys(sorted(names), 0.0)
    for name, stream in zip(names, streams, strict=True):
        totals[name] += stream.total_reward / len(episodes)
    return {f"{what}_episode_returns_mean": totals}


BY_ENV = (
    "success_rate",
    "episode_return_mean",
    "num_turns_mean",
    "num_episodes",
    "num_failed_episodes",
    "truncated_fraction",
    "horizon_fraction",
)


def metrics_by_env(
    episodes: list[Episode], failed: list[Episode], names: Mapping[int, str], *, only_playing: Collection[str] = ()
) -> dict[str, dict[str, float]]:
    """Return {environment's name: the main numbers of its episodes}; `names` are by `env_index`."""
    out = {}
    for k, name in names.items():
        of_env = episode_metrics(
            [episode for episode in episodes if episode.group.env_index == k],
            [episode for episode in failed if episode.group.env_index == k],
            only_playing=only_playing,
        )
        out[name] = {key: of_env[key] for key in BY_ENV}
    return out


def metrics_by_role(episodes: list[Episode]) -> dict[str, dict[str, float]]:
    """Return {role: the numbers of those who played it}, where environments say roles (`info["role"]`).

    They are of the episodes that every task plays, see `Episode.is_conditional`.
    """
    of_role: dict[str, list[tuple[Stream, Episode, bool]]] = defaultdict(list)
    for episode in episodes:
        for stream in () if episode.is_conditional else episode.streams.values():
            info = episode.info.get(stream.agent_id)
            if stream.turns and isinstance(info, dict) and (role := read(info, "role")) is not None:
                of_role[role].append((stream, episode, bool(read(info, "is_success"))))
    return {
        role: {
            "episode_return_mean": _mean(stream.total_reward for stream, _, _ in played),
            "success_rate": _mean(is_won for _, _, is_won in played),
            "illegal_rate": _mean(_ended_it(stream, episode) for stream, episode, _ in played),
            "num_episodes": len(played),
        }
        for role, played in sorted(of_role.items())
    }


def _num_replaced(episode: Episode) -> int:
    """Return how often a program asked for sampling of its own, see `ConversationEnv`."""
    found = episode.info.get("replaced_params")  # of another environment it may be anything
    return sum(count for count in found.values() if isinstance(count, int)) if isinstance(found, dict) else 0


def _ended_it(stream: Stream, episode: Episode) -> bool:
    """Return whether an agent's invalid action was the last of a terminated episode."""
    if not stream.turns or episode.end_reason != "terminated":
        return False
    return stream.turns[-1].is_invalid_action and stream.turns[-1].env_step == episode.num_env_steps - 1


def is_success(episode: Episode, agent_id: str | None = None) -> bool:
    """Return whether the environment said so (`info["is_success"]`) to an agent, or, without one, to all."""
    if "is_success" in episode.info or set(episode.streams) <= {AGENT}:
        return bool(read(episode.info, "is_success"))
    infos = {agent: info for agent, info in episode.info.items() if isinstance(info, dict)}
    if agent_id is not None:
        return bool(read(infos.get(agent_id, {}), "is_success"))
    return bool(infos) and all(read(info, "is_success") for info in infos.values())


def success_share(episode: Episode, only_playing: Collection[str] = ()) -> float:
    """Return the share of the learning agents to which the environment said so: of a game that one wins, one half."""
    agents = [id_ for id_, stream in episode.streams.items() if stream.module_id not in only_playing]
    return _mean(is_success(episode, agent_id) for agent_id in agents) if agents else float(is_success(episode))


def _prompt_tokens(stream: Stream) -> int:
    context = total = sample = 0
    for turn in stream.turns:
        context = len(turn.observation_ids) + (context if turn.context_index == sample else 0)
        total += context
        context, sample = context + len(turn.action_ids), turn.context_index
    return total


def _mean(values: Iterable[float]) -> float:
    listed = list(values)
    return float(np.mean(listed)) if listed else 0.0
