"""Trained tokens/s and peak memory of the learner over a plain transformers loop on the same sequences.

    .venv/bin/python benchmarks/trainer_vs_plain.py tiny
    .venv/bin/python benchmarks/trainer_vs_plain.py random --num-tokens 4096 --num-sampled 800 --num-episodes 2

The plain loop is what one would write by hand: batches of equally many sequences in the order in which they came,
padded on the right to the longest, logits of every position. Both respect the same number of padded tokens per batch,
minimise the same clipped surrogate over the same tokens with the same AdamW, and must report the same losses.
Sequences are TextCraft episodes of the expert, or random tokens of one length with `--num-tokens`.

Each variant runs in a process of its own, in an order that alternates. Extra memory is the peak of resident memory over
the updates, the first included, minus what was resident when everything was built; gradients and Adam's moments are
part of it. The first update is not timed.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from report import mean_and_spread, print_row

LOSS_TOLERANCE = 1e-4
Update = Callable[[], float]  # one train step; returns its loss before the step


@dataclass(frozen=True)
class Setting:
    """The base of both variants."""

    model: str
    lr: float
    tokens_per_micro_batch: int
    zero_stage: Literal[0, 1, 2, 3]  # of the learner
    num_updates: int
    share_prefixes: bool = False  # in the learner
    gradient_checkpointing: Any = False  # in the learner
    is_bf16: bool = False  # the learner's products


@dataclass
class Played:
    """An episode as a sampler hands it over: per turn what the environment added, what was sampled, and its logp."""

    observations: list[np.ndarray]
    actions: list[np.ndarray]
    logps: list[np.ndarray]
    advantage: float

    def flat(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return tokens, mask and log-probabilities of the whole sequence."""
        turns = list(zip(self.observations, self.actions, self.logps, strict=True))
        tokens = np.concatenate([part for observation, action, _ in turns for part in (observation, action)])
        mask = np.concatenate([np.r_[np.zeros(len(o), bool), np.ones(len(a), bool)] for o, a, _ in turns])
        logp = np.concatenate([np.r_[np.zeros(len(o), np.float32), p] for o, _, p in turns])
        return tokens, mask, logp


@dataclass(frozen=True)
class Measurement:
    tokens_per_s: float
    resident_mb: float  # when everything is built
    extra_mb: float
    losses: list[float]


# --- the two variants ---


def build_learner(setting: Setting, episodes: list[Played]) -> Update:
    from gymnasium.spaces import Discrete
    from ray.rllib.core.learner.learner_group import LearnerGroup
    from ray.rllib.core.rl_module.multi_rl_module import MultiRLModuleSpec
    from ray.rllib.core.rl_module.rl_module import RLModuleSpec
    from ray.rllib.utils.spaces.repeated import Repeated

    from rllm_gym.algorithms.grpo import GRPOConfig
    from rllm_gym.learner.batch import SampleData
    from rllm_gym.learner.rl_module import LLMModule
    from rllm_gym.types import Sample, Turn

    config = (
        GRPOConfig()
        .rl_module(base_model=setting.model, gradient_checkpointing=setting.gradient_checkpointing)
        .training(lr=setting.lr)
        .learners(
            tokens_per_micro_batch=setting.tokens_per_micro_batch,
            zero_stage=setting.zero_stage,
            share_prefixes=setting.share_prefixes,
            deepspeed={"torch_autocast": {"enabled": setting.is_bf16, "dtype": "bfloat16"}},
        )
    )
    space = Repeated(Discrete(2), 1)  # the module reads its vocabulary from the model
    spec = RLModuleSpec(LLMModule, space, space, model_config=config._model_config_auto_includes)
    group = LearnerGroup(config=config, module_spec=MultiRLModuleSpec(rl_module_specs={"default_policy": spec}))
    samples = []
    for number, episode in enumerate(episodes):
        turns = zip(episode.observations, episode.actions, episode.logps, strict=True)
        sample = Sample.of_turns([Turn(*turn, policy_version=0, env_step=k) for k, turn in enumerate(turns)])
        sample.episode, sample.advantage = str(number), sample.weight * np.float32(episode.advantage)
        samples.append(sample)

    def update() -> float:
        results = group.update(training_data=SampleData(episodes=samples), timesteps={})
        return float(results[0]["default_policy"]["policy_loss"].peek())

    return update


def build_plain(setting: Setting, episodes: list[Played]) -> Update:
    import torch
    from torch.nn.utils.rnn import pad_sequence
    from transformers import AutoModelForCausalLM

    from rllm_gym.algorithms.functional import clipped_surrogate, probability_ratio
    from rllm_gym.algorithms.grpo import GRPOConfig
    from rllm_gym.models import resolve_base_model

    config = GRPOConfig()
    torch.set_num_threads(config.num_learner_threads)
    lm = AutoModelForCausalLM.from_pretrained(str(resolve_base_model(setting.model)), dtype=torch.float32)
    optimizer = torch.optim.AdamW(
        lm.parameters(), lr=setting.lr, betas=config.adam_betas, weight_decay=config.weight_decay
    )
    rows = [tuple(map(torch.as_tensor, episode.flat())) for episode in episodes]
    tokens, mask, old_logp = (pad_sequence(column, batch_first=True) for column in zip(*rows, strict=True))
    attention = pad_sequence([torch.ones_like(row[0]) for row in rows], batch_first=True)
    advantage = torch.tensor([episode.advantage for episode in episodes])
    num_rows = max(1, setting.tokens_per_micro_batch // tokens.shape[1])

    def update() -> float:
        optimizer.zero_grad()
        total = 0.0
        for part in torch.arange(len(rows)).split(num_rows):
            logits = lm(input_ids=tokens[part], attention_mask=attention[part], use_cache=False).logits
            all_logp = torch.log_softmax(logits[:, :-1], -1)
            logp, is_sampled = all_logp.gather(-1, tokens[part, 1:, None])[..., 0], mask[part, 1:]
            ratio = probability_ratio(logp, old_logp[part, 1:], is_sampled)
            token_loss = clipped_surrogate(
                ratio,
                advantage[part, None].expand_as(logp),
                is_sampled,
                clip_low=config.clip_low,
                clip_high=config.clip_high,
            )
            loss = token_loss.sum() / mask.sum()
            loss.backward()
            total += loss.item()
        torch.nn.utils.clip_grad_norm_(lm.parameters(), config.grad_clip)
        optimizer.step()
        return total

    return update


VARIANTS = {"learner": build_learner, "plain": build_plain}


def measure(variant: str, setting: Setting, episodes: list[Played]) -> Measurement:
    """Build a variant and update it; to be called in a fresh process."""
    update = VARIANTS[variant](setting, episodes)
    resident_mb = resident_memory_mb("VmRSS")
    reset_peak_memory()
    losses, seconds = [], []
    for _ in range(1 + setting.num_updates):
        start_s = time.perf_counter()
        losses.append(update())
        seconds.append(time.perf_counter() - start_s)
    num_tokens = sum(len(episode.flat()[0]) for episode in episodes)
    return Measurement(
        tokens_per_s=num_tokens / statistics.median(seconds[1:]),
        resident_mb=resident_mb,
        extra_mb=resident_memory_mb("VmHWM") - resident_mb,
        losses=losses,
    )


def resident_memory_mb(field: str) -> float:
    """Read VmRSS (resident memory) or VmHWM (its peak) of this process.

    getrusage's ru_maxrss will not do: a child inherits its parent's peak through fork and exec.
    """
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith(field)) / 1024


def reset_peak_memory() -> None:
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")  # man 5 proc_pid_clear_refs: VmHWM becomes VmRSS


# --- models and sequences ---


def make_random_model(folder: str, vocabulary: int) -> None:
    """Write a small Qwen2 with a large vocabulary and random weights."""
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=vocabulary,
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        intermediate_size=128,
        max_position_embeddings=32768,
        tie_word_embeddings=True,
    )
    Qwen2ForCausalLM(config).save_pretrained(folder)


def textcraft_episodes(model: str, num: int, depth: int, seed: int) -> list[Played]:
    """Play episodes with the expert, in the tokens of the model."""
    import gymnasium

    env: Any = gymnasium.make(
        "rllm_gym:rllm_gym/TextCraft-v0",
        depth=depth,
        tokenizer=None if model == "tiny" else model,
        max_episode_steps=-1,  # the expert comes to an end
    )
    encode = env.get_wrapper_attr("encode_action")
    episodes = []
    for number in range(num):
        observation, _ = env.reset(seed=seed * num + number)
        episode, is_over = Played([], [], [], 0.0), False
        while not is_over:
            episode.observations.append(np.asarray(observation))
            episode.actions.append(np.asarray(encode(env.unwrapped.expert_action())))
            observation, _, terminated, truncated, _ = env.step(episode.actions[-1])
            is_over = terminated or truncated
        episodes.append(episode)
    env.close()
    return episodes


def random_episodes(vocabulary: int, num: int, num_tokens: int, num_sampled: int, seed: int) -> list[Played]:
    rng = np.random.default_rng(seed)
    sizes = num_tokens - num_sampled, num_sampled
    turns = [[rng.integers(0, vocabulary, size) for size in sizes] for _ in range(num)]
    return [Played([observation], [action], [], 0.0) for observation, action in turns]


def prepare(args: argparse.Namespace, model: str, seed: int) -> tuple[list[Played], int]:
    """Return a round's episodes, with advantages and the model's own log-probabilities, and the vocabulary's size."""
    import torch

    from rllm_gym.learner.logps import compute_logps, read
    from rllm_gym.learner.rl_module import load_language_model

    lm = load_language_model(model, "float32")
    vocabulary = lm.config.vocab_size
    if args.num_tokens is None:
        episodes = textcraft_episodes(model, args.num_episodes, args.depth, seed)
    else:
        episodes = random_episodes(vocabulary, args.num_episodes, args.num_tokens, args.num_sampled, seed)
    rng = np.random.default_rng(seed)
    for episode in episodes:
        episode.logps = [np.zeros(len(action), np.float32) for action in episode.actions]
        tokens, mask, _ = map(torch.as_tensor, episode.flat())
        with torch.no_grad():
            batch = {"tokens": tokens[None], "mask": mask[None]}
            logp = compute_logps(lm, read(lm, batch), batch, temperature=1.0)["logp"][0][mask].numpy()
        episode.logps = np.split(logp, np.cumsum([len(action) for action in episode.actions])[:-1])
        episode.advantage = float(rng.normal())
    return episodes, vocabulary


def in_fresh_process(function: Callable[..., Any], *args: Any) -> Any:
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(function, *args).result()


# --- the report ---


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="`tiny`, a model folder or name, or `random`: made here, see --vocabulary")
    parser.add_argument("--vocabulary", type=int, default=151_936, help="of the random model; the default is Qwen2.5's")
    parser.add_argument("--num-episodes", type=int, default=64)
    parser.add_argument("--depth", type=int, default=1, help="of the TextCraft tasks")
    parser.add_argument("--num-tokens", type=int, help="random sequences of this length instead of TextCraft's")
    parser.add_argument("--num-sampled", type=int, help="how many of --num-tokens were sampled")
    parser.add_argument("--tokens-per-micro-batch", type=int, default=8192)
    parser.add_argument("--zero-stage", type=int, choices=range(4), default=2, help="of the learner")
    parser.add_argument("--lr", type=float, default=1e-4)
    parser.add_argument("--num-updates", type=int, default=3, help="timed updates in each process")
    parser.add_argument("--rounds", type=int, default=3, help="each with sequences of its own")
    args = parser.parse_args()
    if (args.num_tokens is None) != (args.num_sampled is None):
        parser.error("--num-tokens and --num-sampled come together")
    if args.model == "random" and args.num_tokens is None:
        parser.error("the random model has no tokenizer: give --num-tokens and --num-sampled")
    if args.num_tokens is not None and not 0 < args.num_sampled < args.num_tokens:
        parser.error(f"--num-sampled must be between 1 and --num-tokens - 1; got {args.num_sampled}")
    return args


def main() -> None:
    args = parse_arguments()
    rounds: list[dict[str, Measurement]] = []
    with tempfile.TemporaryDirectory() as folder:
        model = args.model
        if model == "random":
            model = folder
            in_fresh_process(make_random_model, folder, args.vocabulary)
        setting = Setting(model, args.lr, args.tokens_per_micro_batch, args.zero_stage, args.num_updates)
        for number in range(args.rounds):
            episodes, vocabulary = in_fresh_process(prepare, args, model, number)
            order = list(VARIANTS) if number % 2 == 0 else list(VARIANTS)[::-1]
            found = {variant: in_fresh_process(measure, variant, setting, episodes) for variant in order}
            difference = np.abs(np.subtract(found["learner"].losses, found["plain"].losses)).max()
            if difference > LOSS_TOLERANCE:
                raise SystemExit(f"the variants do not train the same: losses differ by {difference:.2g} in {found}")
            rounds.append(found)

    lengths = [len(episode.flat()[0]) for episode in episodes]
    num_sampled = statistics.mean(sum(map(len, episode.actions)) for episode in episodes)
    rows = max(1, min(len(lengths), args.tokens_per_micro_batch // max(lengths)))
    logits_mb = rows * max(lengths) * vocabulary * 4 / 2**20
    resident = {name: statistics.median(found[name].resident_mb for found in rounds) for name in VARIANTS}
    speeds, extras = ({n: [getattr(r[n], f) for r in rounds] for n in VARIANTS} for f in ("tokens_per_s", "extra_mb"))
    speed, extra = ({n: mean_and_spread(v, 0) for n, v in values.items()} for values in (speeds, extras))
    ratio_of_medians = statistics.median(speeds["learner"]) / statistics.median(speeds["plain"])
    result = (
        f"trained tokens/s: learner {speed['learner']}, plain {speed['plain']}, "
        f"ratio of medians {ratio_of_medians:.2f}; "
        f"extra MiB at the peak: learner {extra['learner']}, plain {extra['plain']}, "
        f"full float32 logits of one batch {logits_mb:.0f} "
        f"(resident before: {resident['learner']:.0f}, {resident['plain']:.0f}); "
        f"{len(lengths)} sequences of {mean_and_spread(lengths, 0)} tokens, {num_sampled:.0f} sampled, "
        f"vocabulary {vocabulary}, {args.model} float32, ZeRO-{args.zero_stage}"
    )
    ratios = [a / b for a, b in zip(speeds["learner"], speeds["plain"], strict=True)]
    print_row(range(args.rounds), result, ratios)


if __name__ == "__main__":
    main()
