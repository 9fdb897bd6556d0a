"""The model card: what the tiny model is, how it was made, and what was measured."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from rllm_gym.tiny.data import EASY_TURNS, MIX

if TYPE_CHECKING:
    from rllm_gym.tiny.evaluate import Score

_CARD = """\
---
license: apache-2.0
library_name: transformers
pipeline_tag: text-generation
tags: [reinforcement-learning, textcraft, qwen2]
---
# The tiny model

A Qwen2-architecture language model of {num_parameters:,} parameters that half knows how to play TextCraft. It is what
`base_model: tiny` means: the quickstart trains it, tests and examples use it, and it needs no network. It knows nothing
but TextCraft, and cannot chat.

- Architecture: hidden size 192, 4 layers, 3 query heads of 64 and 1 key-value head, MLP of 528, tied embeddings,
  float32, up to 16,384 positions (the longest episode it was trained on had about 600 tokens).
- Tokenizer: byte-level BPE of {vocab_size:,} tokens, split and normalised (NFC) as Qwen2's. It holds all 256 bytes, so
  that any text can be encoded; each digit is a token of its own.
- Chat template: ChatML, `<|im_start|>{{role}}\\n{{content}}<|im_end|>\\n`, without a default system prompt. A turn ends
  with `<|im_end|>`; padding is `<|endoftext|>`.
- Prompt it without a system prompt (`system_prompt=""`); it has never seen one.

## How it was made

    {command}

The data are expert episodes of the `train` split of TextCraft, played through the token environment, so that their ids
are those of rollouts. The `eval` split is held out from the weights and from the tokenizer.
{mix}
The world's seed, and with it the distracting recipes, is new in each episode. In the loss an action's tokens count 1,
the task's 0.2, replies nothing.

1. {clean_steps} train steps on the expert's own episodes.
2. {mistake_steps} train steps on episodes with **planted mistakes**: {mistake_percent:.0f} % of the turns, in the mean.
   A mistake is to look at the inventory, to craft the goal before all is there, or to take a basic item that only
   other recipes of the list need. The model learns to make them as it learns everything else. They make tasks neither
   hopeless nor certain: the episodes of one task differ, and a group-relative method finds a signal.

**So a part of what reinforcement learning gains on this model is that it unlearns planted mistakes.** Whoever shows
such a gain should say so, and show the held-out tasks beside it.

Settings: seed {seed}, batches of {batch_size} episodes, AdamW at {lr:g} after {warmup_steps} steps of warm-up, bf16
autocast {bf16}, {threads} CPU thread(s). Training took {seconds:.0f} s.

## What it can do

Sampled at temperature 1 with fixed seeds, at most 6 turns of 48 tokens, context of 1,024 tokens:

| tasks | tasks | episodes | success | turns | sampled tokens an episode |
|---|---|---|---|---|---|
{rows}

"Easy" tasks of depth 2 are those that the expert solves in at most {easy_turns} turns. To measure again:
`python -m rllm_gym.tiny.evaluate`.
"""


def render_card(
    *,
    command: str,
    num_parameters: int,
    vocab_size: int,
    seconds: float,
    settings: dict[str, float | int | bool],
    scores: Iterable[Score],
) -> str:
    """Return the model card in Markdown.

    Args:
        settings: the options of `rllm_gym.tiny.train`, by name.
    """
    rows = "\n".join(
        f"| {s.task_set} | {s.num_tasks} | {s.num_episodes} | {s.success_rate:.3f} | {s.num_turns_mean:.2f} | "
        f"{s.sampled_tokens_mean:.0f} |"
        for s in scores
    )
    mix = (
        f"{MIX['depth_1']:.0%} of them are of depth 1, {MIX['easy_depth_2']:.0%} easy ones of depth 2, the rest deeper."
    )
    return _CARD.format(
        command=command,
        num_parameters=num_parameters,
        vocab_size=vocab_size,
        seconds=seconds,
        mix=mix,
        rows=rows or "| not measured | | | | | |",
        easy_turns=EASY_TURNS,
        mistake_percent=100 * settings["mistake_rate"],
        **{key: value for key, value in settings.items() if key != "bf16"},
        bf16="on" if settings["bf16"] else "off",
    )
