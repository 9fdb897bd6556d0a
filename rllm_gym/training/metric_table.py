"""The names, units and meanings of the metrics under `env_runners/`; `docs/metrics.md` is written from them."""

from __future__ import annotations

from typing import NamedTuple


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
