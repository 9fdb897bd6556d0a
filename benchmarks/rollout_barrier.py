"""Trajectories/s of the rollout loop over a per-turn barrier, on the same engine and environments.

    .venv/bin/python benchmarks/rollout_barrier.py
    .venv/bin/python benchmarks/rollout_barrier.py --model rllm_gym/assets/tiny

The environments sleep: log-normal latencies with the generation time as mean and a coefficient of variation of 2. With
a barrier, every turn takes as long as the slowest of its N environments, so the most that can be gained is

    bound = (g + E[max of N latencies]) / (g + E[mean])

where g is the measured time to generate one turn for all N. Without --model the engine sleeps, too: a fixed time per
step for any batch, as an idealised accelerator would. With it, vLLM samples, and a smaller batch is slower per token.
"""

from __future__ import annotations

import argparse
import itertools
import math
import time
from concurrent.futures import ThreadPoolExecutor

import gymnasium
import numpy as np
from report import mean_and_spread, print_row

from rllm_gym.rollout.engines.scripted import ScriptedEngine
from rllm_gym.rollout.loop import RolloutLoop, derive_seed
from rllm_gym.types import AGENT, CompletionRequest, Engine, SamplingParams, TaskGroup

PROMPT_TOKENS, REPLY_TOKENS = 64, 16


class SleepingEnv(gymnasium.Env):
    """Answers after a latency that depends on the reset's seed and the turn alone."""

    stop_ids = ()  # every turn has max_new_tokens tokens, so that both schedules generate the same

    def __init__(self, num_turns: int, mean_s: float, cv: float):
        self.num_turns = num_turns
        self.sigma = math.sqrt(math.log(1 + cv**2))
        self.mu = math.log(mean_s) - self.sigma**2 / 2

    def reset(self, *, seed=None, options=None):
        self.rng, self.num_steps = np.random.default_rng(seed), 0
        return self.rng.integers(0, 200, PROMPT_TOKENS), {}

    def step(self, action):
        self.num_steps += 1
        time.sleep(self.rng.lognormal(self.mu, self.sigma))
        return self.rng.integers(0, 200, REPLY_TOKENS), 0.0, self.num_steps == self.num_turns, False, {}


class TimedEngine(ScriptedEngine):
    """Takes the same time for every step, whatever the batch."""

    def __init__(self, num_tokens: int, step_s: float):
        super().__init__(lambda prompt_ids: [1] * num_tokens, max_context_tokens=2**20)
        self._step_s = step_s

    def step(self):
        time.sleep(self._step_s)
        return super().step()


def expected_max(num: int, mean_s: float, cv: float) -> float:
    """Return E[max of num] = the integral of 1 - F(x)^num for the log-normal F."""
    sigma = math.sqrt(math.log(1 + cv**2))
    mu = math.log(mean_s) - sigma**2 / 2
    z = np.linspace(-8, 12, 20_001)  # x = exp(mu + sigma z)
    x = np.exp(mu + sigma * z)
    cdf = np.array([0.5 * (1 + math.erf(value / math.sqrt(2))) for value in z])
    return float(x[0] + np.trapezoid(1 - cdf**num, x))


def play_with_barrier(envs: list[SleepingEnv], seeds: list[int], engine: Engine, params: SamplingParams) -> None:
    """Play one episode per seed, all environments in step: generate for all, then step all, turn by turn."""
    request_ids = (f"barrier-{i}" for i in itertools.count())
    with ThreadPoolExecutor(len(envs)) as workers:
        for start in range(0, len(seeds), len(envs)):
            playing = list(zip(envs, seeds[start : start + len(envs)], strict=False))
            contexts = [env.reset(seed=seed)[0].tolist() for env, seed in playing]
            for turn in range(envs[0].num_turns):
                tickets = [next(request_ids) for _ in playing]
                for ticket, (_, seed), context in zip(tickets, playing, contexts, strict=True):
                    engine.submit(CompletionRequest(ticket, list(context), (), params, seed + turn))
                done = {}
                while len(done) < len(playing):
                    done |= {completion.request_id: completion.token_ids for completion in engine.step()}
                actions = [done[ticket] for ticket in tickets]
                answers = workers.map(lambda pair: pair[0][0].step(pair[1]), zip(playing, actions, strict=True))
                for context, action, (reply, *_) in zip(contexts, actions, answers, strict=True):
                    context.extend([*action.tolist(), *reply.tolist()])


def generation_s(engine: Engine, num_envs: int, params: SamplingParams) -> float:
    """Return the seconds that one turn of all environments takes to generate, warm."""
    for attempt in range(2):
        engine.reset_prefix_cache()
        start_s = time.perf_counter()
        rng = np.random.default_rng(attempt)
        for i in range(num_envs):
            prompt_ids = rng.integers(0, 200, PROMPT_TOKENS).tolist()
            engine.submit(CompletionRequest(f"warm-{attempt}-{i}", prompt_ids, (), params, i))
        num_done = 0
        while num_done < num_envs:
            num_done += len(engine.step())
    return time.perf_counter() - start_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="a model folder or name for vLLM; default: the engine that sleeps")
    parser.add_argument("--num-envs", type=int, default=64)
    parser.add_argument("--num-episodes", type=int, default=512)
    parser.add_argument("--num-turns", type=int, default=8)
    parser.add_argument("--max-new-tokens", type=int, default=20)
    parser.add_argument("--step-s", type=float, default=0.005, help="seconds per step of the sleeping engine")
    parser.add_argument("--cv", type=float, default=2.0, help="coefficient of variation of the latencies")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    args = parser.parse_args()

    params = SamplingParams(args.max_new_tokens)
    max_model_len = PROMPT_TOKENS + (args.num_turns + 1) * (args.max_new_tokens + REPLY_TOKENS)
    engine: Engine
    if args.model:
        from rllm_gym.rollout.engines.vllm import VLLMEngine

        engine = VLLMEngine(args.model, max_model_len=max_model_len, max_num_seqs=args.num_envs)
    else:
        engine = TimedEngine(args.max_new_tokens, args.step_s)
    mean_s = generation_s(engine, args.num_envs, params)
    bound = (mean_s + expected_max(args.num_envs, mean_s, args.cv)) / (2 * mean_s)

    free, locked = [], []
    for seed in args.seeds:
        groups = [TaskGroup((seed, index), None, 1) for index in range(args.num_episodes)]
        loop = RolloutLoop(
            lambda env_index: SleepingEnv(args.num_turns, mean_s, args.cv),
            {"main": engine},
            module_of=lambda agent_id, episode: "main",
            num_envs=args.num_envs,
            num_env_workers=args.num_envs,
            params=params,
            max_model_len=max_model_len,
        )
        engine.reset_prefix_cache()
        start_s = time.perf_counter()
        loop.submit(groups, max_episode_steps=None)
        turns = [len(e.streams[AGENT].turns) for group in loop.finished_groups() for e in group.episodes]
        free.append(args.num_episodes / (time.perf_counter() - start_s))
        loop.close()
        assert turns == [args.num_turns] * args.num_episodes

        engine.reset_prefix_cache()
        envs = [SleepingEnv(args.num_turns, mean_s, args.cv) for _ in range(args.num_envs)]
        start_s = time.perf_counter()
        play_with_barrier(envs, [derive_seed(*group.key) for group in groups], engine, params)
        locked.append(args.num_episodes / (time.perf_counter() - start_s))
    engine.close()

    ratios = [a / b for a, b in zip(free, locked, strict=True)]
    result = (
        f"{mean_and_spread(free)} trajectories/s without a barrier, {mean_and_spread(locked)} with one per turn; "
        f"generation and mean latency {mean_s:.3f} s, CV {args.cv}; analytic bound of the ratio {bound:.2f}, "
        f"reached {np.mean(ratios) / bound:.0%}; engine: {args.model or 'sleeping'}"
    )
    print_row(args.seeds, result, ratios)


if __name__ == "__main__":
    main()
