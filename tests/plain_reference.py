"""The policy-gradient methods in plain Python and torch: from played episodes to the loss, one token after another.

Rewards are exact fractions: a tie needs no tolerance. A row is an agent's episode, and each sampled token has its id.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from fractions import Fraction
from types import SimpleNamespace as Row
from typing import Any

import torch

from rllm_gym.types import Episode, Stream


def exact(value: float) -> Fraction:
    return Fraction(repr(float(value)))


def rows_of(config: Any, task: int, episode: Episode, kl: Mapping[int, Fraction]) -> dict[str, Row]:
    def earned(stream: Stream) -> list[Fraction]:
        return [exact(t.reward) - exact(config.invalid_action_penalty) * t.is_invalid_action for t in stream.turns]

    rows = {}
    for agent, stream in episode.streams.items():
        contexts, lengths = defaultdict(list), defaultdict(int)
        for turn in stream.turns:
            contexts[turn.context_index] += turn.action_ids.tolist()
            lengths[turn.context_index] += len(turn.observation_ids) + len(turn.action_ids)
        turns, rewards = [turn.action_ids.tolist() for turn in stream.turns], earned(stream)
        if config.kl_in == "reward":
            rewards = [r - sum(kl[t] for t in ids) for r, ids in zip(rewards, turns, strict=True)]
        if buffer := round(getattr(config, "overlong_buffer", 0) * config.max_model_len):
            excess = Fraction(max(lengths.values()) - (config.max_model_len - buffer), buffer)
            rewards[-1] -= min(max(excess, Fraction(0)), Fraction(1))
        rows[agent] = Row(
            episode=episode.episode_id,
            advantage={},  # of each token
            group=(task, stream.role),
            contexts=list(contexts.values()),
            turns=turns,
            rewards=rewards,  # of each turn
            others=sum((sum(earned(other)) for a, other in episode.streams.items() if a != agent), Fraction(0)),
            states=[tuple(turn.observation_ids.tolist()) for turn in stream.turns],
            is_success=episode.info.get(agent, episode.info)["is_success"],
            is_overlong=episode.end_reason == "context_limit",
        )
    return rows


def compare(config: Any, values: Sequence[Fraction], keys: Sequence[Any]) -> list[float]:
    """How much better each value is than those with the same key."""
    groups, found = defaultdict(list), []
    for value, key in zip(values, keys, strict=True):
        groups[key].append(value)
    for value, key in zip(values, keys, strict=True):
        n, mean = len(groups[key]), sum(groups[key]) / len(groups[key])
        deviation = math.sqrt(sum((other - mean) ** 2 for other in groups[key]) / max(n - 1, 1)) + 1e-6
        scale = n / max(n - 1, 1) if config.algo_class.__name__ == "RLOO" else 1.0
        found.append(float(value - mean) * scale / (deviation if getattr(config, "normalize_std", False) else 1.0))
    return found


def turn_advantages(config: Any, rows: Sequence[Row], labels: Sequence[Sequence[Any]]) -> list[list[float]]:
    """Each turn's discounted return, compared with those of the group's turns with the same label."""
    gamma = exact(config.step_gamma)
    returns = [[*itertools.accumulate(row.rewards[::-1], lambda g, r: r + gamma * g)][::-1] for row in rows]
    keys = [(row.group, label) for row, of_row in zip(rows, labels, strict=True) for label in of_row]
    found = iter(compare(config, [value for of_row in returns for value in of_row], keys))
    return [[next(found) for _ in of_row] for of_row in returns]


def set_advantages(config: Any, rows: Sequence[Row], kl: Mapping[int, Fraction], value: Sequence[float]) -> None:
    """Give the tokens of one module's rows their advantages."""
    groups, credit = [row.group for row in rows], getattr(config, "advantage", "agent")
    totals = [sum(row.rewards) + (row.others if credit == "joint" else 0) for row in rows]
    if config.algo_class.__name__ in ("PPO", "ReinforcePP"):
        return set_whitened(config, rows, compare(config, totals, groups), kl, value)
    match credit:
        case "agent" | "joint":
            per_turn = [[a] * len(row.turns) for a, row in zip(compare(config, totals, groups), rows, strict=True)]
            if omega := getattr(config, "step_weight", 0):
                steps = turn_advantages(config, rows, [row.states for row in rows])
                per_turn = [[a[0] + omega * s for s in of_row] for a, of_row in zip(per_turn, steps, strict=True)]
        case "agent_turn":
            per_turn = turn_advantages(config, rows, [range(len(row.turns)) for row in rows])
        case "role":
            per_turn, baseline = [], defaultdict(Fraction)
            for row, total in zip(rows, totals, strict=True):
                difference = total - baseline[row.group[1]]
                per_turn.append([float(difference)] * len(row.turns))
                baseline[row.group[1]] += (1 - exact(config.role_decay)) * difference
    for row, of_row in zip(rows, per_turn, strict=True):
        row.advantage = {t: a for ids, a in zip(row.turns, of_row, strict=True) for t in ids}


def set_whitened(config: Any, rows: Sequence[Row], compared: Sequence[float], kl, value) -> None:
    for row, of_row in zip(rows, compared, strict=True):
        after, next_value, lambda_ = 0.0, 0.0, getattr(config, "lambda_", 1.0)
        for ids, reward in zip(reversed(row.turns), reversed(row.rewards), strict=True):
            cost = {t: float(kl[t]) if config.kl_in == "reward" else 0.0 for t in ids}
            for t in reversed(ids):
                v = value[t] if config.algo_class.__name__ == "PPO" else 0.0
                r = (float(reward) + sum(cost.values())) * (t == ids[-1]) - cost[t]
                after = r + config.gamma * next_value - v + config.gamma * lambda_ * after
                next_value, row.advantage[t] = v, of_row if getattr(config, "baseline", "") == "group" else after
    found = [a for row in rows for a in row.advantage.values()]
    mean = math.fsum(found) / len(found)
    deviation = math.sqrt(math.fsum((a - mean) ** 2 for a in found) / (len(found) - 1))
    for row in rows:
        row.advantage = {t: (a - mean) / deviation for t, a in row.advantage.items()}


def trained(config: Any, rows: Sequence[Row]) -> list[Row]:
    """The rows that are left once groups are dropped that teach nothing."""
    seen: dict[Any, set[float]] = defaultdict(set)
    for row in rows:
        seen[row.group] |= {row.is_success} if config.filter_groups == "success" else set(row.advantage.values())
    teaches = {"off": lambda of: True, "success": lambda of: len(of) == 2, "advantage": lambda of: of != {0.0}}
    is_kept = teaches[config.filter_groups]
    return [row for row in rows if is_kept(seen[row.group]) and not (config.overlong_filter and row.is_overlong)]


def plain_loss(config: Any, rows: Sequence[Row], logp, old, ref, entropy) -> torch.Tensor:
    """The loss of one module's rows, each an agent's episode; the last four arguments have a number for each token."""
    in_episode: dict[str, int] = defaultdict(int)
    for row in rows:
        in_episode[row.episode] += len(row.advantage)
    loss = torch.zeros((), dtype=logp.dtype)
    for row in rows:
        share = {
            "tokens": 1 / sum(in_episode.values()),
            "sequences": 1 / len(rows) / len(row.advantage),
            "episodes": 1 / len(in_episode) / in_episode[row.episode],
            "constant": 1 / len(rows) / config.loss_constant,
        }[config.loss_average]
        for context in row.contexts:
            mean = sum((logp[t] - old[t]).item() for t in context) / len(context)
            for t in context:
                ratio = (logp[t] - (old[t] if config.ratio_level == "token" else logp[t].detach() - mean)).exp()
                clipped = ratio.clamp(1 - config.clip_low, 1 + config.clip_high)
                gain = torch.minimum(ratio * row.advantage[t], clipped * row.advantage[t])
                kl = ((ref[t] - logp[t]).exp() - (ref[t] - logp[t]) - 1) * (config.kl_in == "loss")
                loss = loss + share * (config.kl_coeff * kl - gain - config.entropy_coeff * entropy[t])
    return loss
