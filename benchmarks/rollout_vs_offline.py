"""Tokens/s generated during rollouts over the engine's own offline batch rate for the same lengths.

    .venv/bin/python benchmarks/rollout_vs_offline.py rllm_gym/assets/tiny

Rollouts are played first. Then the same prompts, each with as many new tokens as the rollout sampled, are given to the
same engine all at once: first turns first, so that later turns find their prefixes in the cache, as in the rollout. The
ratio is what waiting for environments, thin batches and the loop itself leave of the engine's rate.
"""

from __future__ import annotations

import argparse
import time

import gymnasium
from report import mean_and_spread, print_row

from rllm_gym.rollout.engines.vllm import VLLMEngine
from rllm_gym.rollout.loop import RolloutLoop
from rllm_gym.types import CompletionRequest, Episode, SamplingParams, TaskGroup


def requests_of(episodes: list[Episode], params: SamplingParams) -> list[CompletionRequest]:
    """Return one request per turn, all first turns first, that samples exactly as many tokens as the turn had."""
    by_turn = []
    for episode in episodes:
        for stream in episode.streams.values():
            context: list[int] = []
            for index, turn in enumerate(stream.turns):
                context += turn.observation_ids.tolist()
                by_turn.append((index, list(context), len(turn.action_ids)))
                context += turn.action_ids.tolist()
    by_turn.sort(key=lambda item: item[0])
    return [
        CompletionRequest(f"offline-{i}", prompt_ids, (), SamplingParams(num_tokens, params.temperature), seed=i)
        for i, (_, prompt_ids, num_tokens) in enumerate(by_turn)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="a model folder or name, with its tokenizer")
    parser.add_argument("--env", default="rllm_gym:rllm_gym/TextCraft-v0")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--num-groups", type=int, default=16)
    parser.add_argument("--group-size", type=int, default=8)
    parser.add_argument("--num-envs", type=int, default=64)
    parser.add_argument("--num-env-workers", type=int, default=0)
    parser.add_argument("--horizon", type=int, default=6)
    parser.add_argument("--max-new-tokens", type=int, default=64)
    parser.add_argument("--max-model-len", type=int, default=2048)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    args = parser.parse_args()

    params = SamplingParams(args.max_new_tokens)
    engine = VLLMEngine(args.model, dtype=args.dtype, max_model_len=args.max_model_len, max_num_seqs=args.num_envs)
    loop = RolloutLoop(
        # -1: no TimeLimit, the loop owns the horizon.
        lambda env_index: gymnasium.make(args.env, tokenizer=args.model, max_episode_steps=-1),
        {"main": engine},
        module_of=lambda agent_id, episode: "main",
        num_envs=args.num_envs,
        num_env_workers=args.num_env_workers,
        params=params,
        max_model_len=args.max_model_len,
    )

    def play(key: tuple[int, ...], num_groups: int) -> list[Episode]:
        engine.reset_prefix_cache()
        loop.submit(
            [TaskGroup((*key, i), None, args.group_size) for i in range(num_groups)], max_episode_steps=args.horizon
        )
        return [episode for group in loop.finished_groups() for episode in group.episodes]

    play((0, 1), -(-args.num_envs // args.group_size))  # makes the environments and warms the engine up
    rollout, offline, cached = [], [], []
    for seed in args.seeds:
        start_s = time.perf_counter()
        episodes = play((seed, 0), args.num_groups)
        seconds = time.perf_counter() - start_s
        turns = [turn for episode in episodes for stream in episode.streams.values() for turn in stream.turns]
        num_tokens = sum(len(turn.action_ids) for turn in turns)
        rollout.append(num_tokens / seconds)

        requests = requests_of(episodes, params)
        num_prompt_tokens = sum(len(request.prompt_ids) for request in requests)
        engine.reset_prefix_cache()
        start_s = time.perf_counter()
        for request in requests:
            engine.submit(request)
        done = []
        while len(done) < len(requests):
            done += engine.step()
        offline.append(num_tokens / (time.perf_counter() - start_s))
        assert sum(len(completion.token_ids) for completion in done) == num_tokens
        cached.append([sum(c.num_cached_tokens for c in part) / num_prompt_tokens for part in (turns, done)])
    loop.close()
    engine.close()

    ratios = [a / b for a, b in zip(rollout, offline, strict=True)]
    in_rollout, in_offline = (mean_and_spread([100 * pair[i] for pair in cached], 0) for i in (0, 1))
    result = (
        f"{mean_and_spread(rollout, 0)} sampled tokens/s in rollouts, {mean_and_spread(offline, 0)} offline; "
        f"prompt tokens from the cache {in_rollout} % and {in_offline} %; {args.model} {args.dtype}, {args.env}, "
        f"{args.num_envs} environments"
    )
    print_row(args.seeds, result, ratios)


if __name__ == "__main__":
    main()
