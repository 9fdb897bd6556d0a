"""Every pair of options that touch the same quantity: what the driver and the learner make of it is the plain
reference's, loss and gradient, or the configuration refuses it by one line."""

from __future__ import annotations

import functools
import itertools
from collections import defaultdict
from fractions import Fraction
from types import SimpleNamespace
from unittest import mock

import numpy as np
import pytest
import torch

from rllm_gym.algorithms.policy_gradient import StepSamples
from rllm_gym.algorithms.registry import get_algorithm_class
from rllm_gym.errors import ConfigError
from rllm_gym.learner.batch import Batch, collate, number_lots
from rllm_gym.learner.packing import split_into_micro_batches
from rllm_gym.training.algorithm import LLMAlgorithm
from rllm_gym.types import AGENT, DEFAULT_MODULE, EndReason, Episode, Stream, TaskGroup, Turn
from tests.envs.toy_multi_agent import AGENTS, PassTheWord
from tests.plain_reference import plain_loss, rows_of, set_advantages, trained

pytestmark = [pytest.mark.slow, pytest.mark.promise]

# Tasks, of episodes: the turns of two agents, and who succeeded. A turn is reward:tokens, "!" is an invalid action, and
# "|" begins a new context.
TASKS = [
    [  # returns that differ, good turns beside bad ones
        ("0.5:2 -0.3:1 | 0:2!", "0:1 0:2", "a"),
        ("0:1! 0.2:3", "1:2", "b"),
        ("0.4:2", "0.1:1! 0.3:2", ""),
        ("1:1 0:1 -0.5:2", "0:3 | 0.25:1", "ab"),
    ],
    [  # the first agent's tie, summed otherwise; so do the team's
        ("0.1:1 0.1:2 | 0.1:1", "0.7:1", "a"),
        ("0.3:2", "0.1:1 0.1:1 0.5:1", ""),
        ("0.2:1 0.1:1", "0.6:2 0.1:1", "b"),
        ("0:2 0.3:1", "0.7:1 | 0:2", "a"),
    ],
    [  # all succeed; they differ by an invalid action alone
        ("1:1", "0.5:1", "ab"),
        ("1:3!", "0.5:2", "ab"),
        ("1:2", "0.5:1!", "ab"),
        ("1:1", "0.5:1", "ab"),
    ],
]
NUM_IDS, FIRST_SAMPLED = 300, 100  # of tokens
SEATS = ("one", "two", "changing")  # one agent; two of one policy; two policies that change seats
COMMON = {"group_size": 4, "kl_coeff": 0.25, "kl_kind": "k3", "entropy_coeff": 0.125, "invalid_action_penalty": 0.1}
COMMON |= {"max_model_len": 20, "max_new_tokens": 2, "max_episode_steps": 3, "loss_constant": 11}
LOSS = {
    "ratio_level": ("token", "sequence"),
    "loss_average": ("tokens", "sequences", "episodes", "constant"),
    "filter_groups": ("off", "advantage", "success"),
}
COMPARED = {"advantage": ("agent", "agent_turn", "joint", "role")}


def choices(**axes) -> list[dict]:
    return [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]


CASES = {
    "GRPO": [
        *choices(**COMPARED, normalize_std=(True, False), **LOSS),
        *choices(preset=("grpo", "dr_grpo", "dapo", "gspo", "gigpo"), **COMPARED),
        *choices(overlong_buffer=(0.2,), normalize_std=(False,), **COMPARED),
        *choices(step_weight=(0.5,), step_gamma=(0.5,), **LOSS),
    ],
    "RLOO": choices(**COMPARED, kl_in=("loss", "reward"), **LOSS),
    "ReinforcePP": choices(baseline=("none", "group"), kl_in=("loss", "reward"), **LOSS),
    "PPO": choices(gamma=(0.9,), lambda_=(0.8,), **LOSS),
}


def configure(method: str, seats: str, **options):
    algo_class = get_algorithm_class(method)
    env = {"one": "rllm_gym/TextCraft-v0", "two": PassTheWord, "changing": "rllm_gym/KuhnPoker-v0"}[seats]
    config = algo_class.get_default_config().environment(env)
    if seats == "changing":
        config = config.multi_agent(policies=["player_0", "player_1"])
    given = COMMON | options
    if "preset" in options:
        given = {name: value for name, value in given.items() if name not in ("kl_kind", "kl_coeff")}
    if options.get("kl_in") == "reward":
        given["kl_kind"] = "k1"
    config = config.update_from_dict(given)
    config.validate()
    return config


def num_refusals(method: str, options: dict) -> int:
    """How many lines the configuration says no with, as documented."""
    published = {"gspo": ("sequence", "sequences"), "grpo": ("token", "sequences"), "dr_grpo": ("token", "constant")}
    level, average = published.get(options.get("preset"), ("token", "tokens"))
    level, average = options.get("ratio_level", level), options.get("loss_average", average)
    is_joint, has_steps = options.get("advantage") == "joint", options.get("preset") == "gigpo"
    has_buffer = "overlong_buffer" in options or options.get("preset") == "dapo"
    whitens_alone = method == "PPO" or options.get("baseline") == "none"
    return sum(
        (
            level == "sequence" and average in ("tokens", "constant"),
            is_joint and options.get("kl_in") == "reward",
            is_joint and has_buffer,
            has_steps and options.get("advantage") != "agent",
            whitens_alone and options["filter_groups"] == "advantage",
        )
    )


@functools.cache
def played(seats: str) -> list[tuple[int, Episode]]:
    """The episodes, each with its task; every sampled token has an id of its own."""
    number, found = itertools.count(FIRST_SAMPLED), []
    for task, of_task in enumerate(TASKS):
        group = TaskGroup((0, 0, task), None, len(of_task))
        for member, (*texts, winners) in enumerate(of_task):
            agents = {"one": [AGENT], "two": AGENTS, "changing": ["player_0", "player_1"]}[seats]
            streams, info = {}, {}
            for seat, (text, winner) in enumerate(zip(texts[: len(agents)], "ab", strict=False)):
                agent = agents[(seat + member) % 2] if seats == "changing" else agents[seat]
                module = agent if seats == "changing" else DEFAULT_MODULE
                turns = [*read_turns(text, number, seat)]
                streams[agent] = Stream(agent, module, turns, role=f"seat_{seat}" if len(agents) > 1 else AGENT)
                info[agent] = {"is_success": winner in winners}
            episode = Episode(f"{task}.{member}", group, member, 0, streams=streams, end_reason=EndReason.TERMINATED)
            episode.info = info[AGENT] if seats == "one" else info
            if member == 3:
                episode.end_reason = EndReason.CONTEXT_LIMIT
            found.append((task, episode))
    return found


def read_turns(text: str, number, seat: int):
    context = step = 0
    for word in text.split():
        if word == "|":
            context += 1
            continue
        reward, size = word.rstrip("!").split(":")
        ids = np.array(list(itertools.islice(number, int(size))))
        seen = np.full(5, 1 + step // 2 + 10 * seat)  # the first two turns see the same
        logp = table("old")[ids].numpy().astype(np.float32)
        yield Turn(seen, ids, logp, 0, step, float(reward), is_invalid_action="!" in word, context_index=context)
        step += 1


@functools.cache
def table(name: str) -> torch.Tensor:
    """A number for each token: multiples of 1/64, which are exact in float32."""
    names = {"old": (0, 0.0), "ref_logp": (1, 0.3), "trainer_logp": (2, 0.1), "value": (3, 0.5), "logp": (4, 0.4)}
    seed, noise = names[name]
    drawn = torch.randn(NUM_IDS, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    base = torch.linspace(-2, -1, NUM_IDS, dtype=torch.float64) if name != "value" else 0.0
    return ((base + noise * drawn) * 64).round() / 64


def fill(samples, names) -> None:
    """What learners score, from tables."""
    for sample in samples:
        for name in names:
            setattr(sample, name, (table(name)[sample.tokens].numpy() * (sample.weight != 0)).astype(np.float32))


def found_losses(config, seats: str, logp: torch.Tensor) -> dict[str, torch.Tensor]:
    """The losses of the modules, through the driver's advantages and the learner's micro-batches."""
    driver = object.__new__(config.algo_class)
    driver.config, driver.environments = config, config.environments
    driver.metrics, driver.sampled = SimpleNamespace(log_dict=lambda *_, **__: None), StepSamples()
    driver.score = fill
    with mock.patch.object(LLMAlgorithm, "setup"):
        driver.setup(config)
    driver._assess([episode for _, episode in played(seats)])
    trained = driver.sampled.trained
    fill(trained, config.scores_for_loss + ["trainer_logp"] * (config.old_logp == "recompute"))
    number_lots(trained, 1)
    learner = object.__new__(config.get_default_learner_class())
    learner.config, learner.kl_coeff, learner._num_loss_tokens = config, {}, config.num_loss_tokens
    learner.is_first_step, learner.step_share = False, 1.0
    modules = sorted({sample.module for sample in trained})
    learner._module = {module: SimpleNamespace(learner_only=False) for module in modules}
    learner._start_statistics()
    losses = {}
    for module in modules:
        batch = Batch.from_mapping(collate([sample for sample in trained if sample.module == module]))
        parts = split_into_micro_batches(batch, 40, is_packed=True)
        assert len(parts) > 1
        outs = [{"logp": logp[part.batch.tokens], "entropy": entropy(logp)[part.batch.tokens]} for part in parts]
        losses[module] = sum(learner._loss(module, p, batch.counts(), out) for p, out in zip(parts, outs, strict=True))
    return losses


def entropy(logp: torch.Tensor) -> torch.Tensor:
    return -logp * logp.exp()  # stands for one: some function of the weights


def plain_losses(config, seats: str, logp: torch.Tensor) -> dict[str, torch.Tensor]:
    by_module, losses = defaultdict(list), {}
    # In the reward the KL is k1; all its terms are exact.
    cost = [Fraction(config.kl_coeff * k1) for k1 in (table("old") - table("ref_logp")).tolist()]
    for task, episode in played(seats):
        for agent, row in rows_of(config, task, episode, cost).items():
            by_module[episode.streams[agent].module_id].append(row)
    old = table("trainer_logp" if config.old_logp == "recompute" else "old")
    for module, rows in sorted(by_module.items()):
        set_advantages(config, rows, cost, table("value").tolist())
        if kept := trained(config, rows):
            losses[module] = plain_loss(config, kept, logp, old, table("ref_logp"), entropy(logp))
    return losses


def check(method: str, seats: str, **options) -> None:
    if refusals := num_refusals(method, options):
        with pytest.raises(ConfigError) as error:
            configure(method, seats, **options)
        assert len(str(error.value).splitlines()) == refusals
        return
    config = configure(method, seats, **options)
    logp = table("logp").clone().requires_grad_()
    found, plain = found_losses(config, seats, logp), plain_losses(config, seats, logp)
    assert found.keys() == plain.keys()
    for module in plain:
        assert found[module].item() == pytest.approx(plain[module].item(), rel=1e-5, abs=1e-6)
        gradients = [torch.autograd.grad(losses[module], logp, retain_graph=True)[0] for losses in (found, plain)]
        torch.testing.assert_close(*gradients, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("seats", SEATS)
@pytest.mark.parametrize("method", CASES)
def test_every_combination_is_the_references_or_refused_by_a_line(method, seats):
    for case in CASES[method]:
        try:
            check(method, seats, **case)
        except BaseException as error:
            error.add_note(f"{method}, {seats}: {case}")
            raise


def test_policies_that_change_seats_are_not_compared_in_halves_of_one():
    for advantage in ("agent", "agent_turn", "joint"):
        with pytest.raises(ConfigError, match="Set group_size: 4, or more"):
            configure("GRPO", "changing", group_size=2, advantage=advantage)
    configure("GRPO", "changing", group_size=2, advantage="role")
