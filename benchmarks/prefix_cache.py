"""The share of prompt tokens that came from the prefix cache, beside the share that could have.

    .venv/bin/python benchmarks/prefix_cache.py rllm_gym/assets/tiny
    .venv/bin/python benchmarks/prefix_cache.py rllm_gym/assets/tiny --block-sizes 32 64 128

Possible is, of each request, the longest prefix that was in a prompt submitted before it or in a completion ended
before it, less the prompt's last token where it would be all of it: that one must be read for the next one's
probabilities. A cache holds whole blocks of tokens, on a CPU of 32 and its multiples: possible with these is that,
rounded down. Each setting plays the same groups with an empty cache.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterable, Iterator
from typing import Any

import gymnasium
from report import mean_and_spread, print_row

from rllm_gym.rollout.engines.vllm import VLLMEngine
from rllm_gym.rollout.loop import RolloutLoop
from rllm_gym.types import Completion, CompletionRequest, SamplingParams, TaskGroup


class WatchedEngine(VLLMEngine):
    """Counts the tokens of prompts, those that were in the cache, and those that could have been."""

    def watch(self, block_size: int) -> None:
        self.block_size = block_size
        self.seen: set[int] = set()  # a hash of every prefix
        self.prompts: dict[str, list[int]] = {}
        self.num_tokens = self.num_cached = self.num_possible = self.num_in_blocks = 0

    def submit(self, request: CompletionRequest, adapter: Any = None) -> None:
        hashes = list(prefixes(request.prompt_ids))
        known = next((k for k, of in enumerate(hashes) if of not in self.seen), len(hashes) - 1)
        self.num_tokens += len(hashes)
        self.num_possible += known
        self.num_in_blocks += known - known % self.block_size
        self.seen.update(hashes)
        self.prompts[request.request_id] = request.prompt_ids
        super().submit(request, adapter)

    def step(self) -> list[Completion]:
        completions = super().step()
        for completion in completions:
            self.num_cached += completion.num_cached_tokens
            # The last token was sampled and never read.
            read = [*self.prompts.pop(completion.request_id), *completion.token_ids.tolist()[:-1]]
            self.seen.update(prefixes(read))
        return completions


def prefixes(token_ids: Iterable[int]) -> Iterator[int]:
    before = 0
    for token in token_ids:
        before = hash((before, token))
        yield before


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="a model folder or name, with its tokenizer")
    parser.add_argument("--env", default="rllm_gym:rllm_gym/TextCraft-v0")
    parser.add_argument("--block-sizes", type=int, nargs="+", default=[32], help="of the cache, in tokens")
    parser.add_argument("--cache-mb", type=int, default=128)
    parser.add_argument("--num-groups", type=int, default=16)
    parser.add_argument("--group-size", type=int, default=8)
    parser.add_argument("--num-envs", type=int, default=64)
    parser.add_argument("--horizon", type=int, default=6)
    parser.add_argument("--max-new-tokens", type=int, default=48)
    parser.add_argument("--max-model-len", type=int, default=2048)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    args = parser.parse_args()

    for block_size in args.block_sizes:
        options = {"kv_cache_memory_bytes": args.cache_mb * 2**20, "block_size": block_size}
        engine = WatchedEngine(
            args.model, max_model_len=args.max_model_len, max_num_seqs=args.num_envs, options=options
        )
        loop = RolloutLoop(
            # -1: no TimeLimit, the loop owns the horizon.
            lambda env_index: gymnasium.make(args.env, tokenizer=args.model, max_episode_steps=-1),
            {"main": engine},
            module_of=lambda agent_id, episode: "main",
            num_envs=args.num_envs,
            params=SamplingParams(args.max_new_tokens),
            max_model_len=args.max_model_len,
        )
        cached, in_blocks, possible, seconds = [], [], [], []
        for seed in args.seeds:
            engine.reset_prefix_cache()
            engine.watch(block_size)
            loop.submit(
                [TaskGroup((seed, 0, k), None, args.group_size) for k in range(args.num_groups)],
                max_episode_steps=args.horizon,
            )
            begun = time.process_time()
            for _ in loop.finished_groups():
                pass
            seconds.append(time.process_time() - begun)
            cached.append(100 * engine.num_cached / engine.num_tokens)
            in_blocks.append(100 * engine.num_in_blocks / engine.num_tokens)
            possible.append(100 * engine.num_possible / engine.num_tokens)
        loop.close()
        engine.close()
        result = (
            f"blocks of {block_size}: {mean_and_spread(cached)} % of prompt tokens cached, "
            f"{mean_and_spread(in_blocks)} % possible in whole blocks, {mean_and_spread(possible)} % in all; "
            f"{mean_and_spread(seconds)} processor s"
        )
        print_row(args.seeds, result, [c / p for c, p in zip(cached, in_blocks, strict=True)])


if __name__ == "__main__":
    main()
