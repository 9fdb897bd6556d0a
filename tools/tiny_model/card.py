"""The model card: what the tiny model is, how it was made, and what was measured."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from tools.tiny_model.sources import EASY_TURNS, ENV_SHARES, TEXTCRAFT_SHARES

if TYPE_CHECKING:
    from tools.tiny_model.success_rates import Score

_CARD = """\
---
license: apache-2.0
library_name: transformers
pipeline_tag: text-generation
tags: [reinforcement-learning, textcraft, qwen2]
---
# The tiny model

A Qwen2-architecture language model of {num_parameters:,} parameters that half knows how to play TextCraft, and has seen
BabyAI, SearchQA, SciWorld, MiniWoB and WebArena. It is what `base_model: tiny` means: the quickstart trains it, tests
and examples use it, and it needs no network. It knows nothing but these environments, and cannot chat.

- Architecture: hidden size 256, 4 layers, 4 query heads of 64 and 2 key-value heads, MLP of 512, tied embeddings, RoPE
  with theta 100,000, up to 16,384 positions (the longest episodes it was trained on had about 1,000 tokens).
- Weights: stored in bfloat16; config.json names float32, so that they load as float32 unless `dtype` says otherwise.
- Tokenizer: byte-level BPE of {vocab_size:,} tokens from the texts of the six environments, split and normalised (NFC)
as
  Qwen2's. It holds all 256 bytes, so that any text can be encoded; each digit is a token of its own.
- Chat template: ChatML, `<|im_start|>{{role}}\\n{{content}}<|im_end|>\\n`, without a default system prompt. A turn ends
  with `<|im_end|>`; padding is `<|endoftext|>`.
- It has seen each environment's own system prompt in few episodes (of MiniWoB and WebArena in none), and none in most:
  `system_prompt=""` is its best side.

## How it was made

    {command}

The data are expert episodes of the `train` splits, with **planted mistakes** and **exchanged names**. The `eval` splits
are held out from the weights and from the tokenizer. Of the episodes, but for the last step,
{shares}.
Of TextCraft's, {parts}.

1. The first weights are random, but for two attention heads that copy what followed an earlier occurrence of the
   present token (`tools/tiny_model/wiring.py`). Found from noise they take millions of tokens.
2. Reading, {reading_steps} train steps: short episodes, nine tenths of them with the words of item names (TextCraft) or
   proper names and numbers (SearchQA) exchanged by others, drawn anew for each episode, so that copying is what helps.
3. Practice, {practice_steps} train steps: seven tenths of the episodes under true names.
4. Mistakes, {mistakes_steps} train steps: the same, but in TextCraft's tasks of depth 1, **which the quickstart
   trains**, the expert makes many.
5. The web, {web_steps} train steps: half of the episodes are of MiniWoB and WebArena, the others as before. There the
   expert clicks on a wrong element before a quarter of its turns in MiniWoB, which is often an episode's end, and
   before a seventh of them in WebArena.

All four are runs of this package's own `SFT` (`tools/tiny_model/stages.py`). Before each of the expert's turns a
mistake begins with a chance of 0.1, and it is repeated with a chance of 0.3, each time; in the tasks of depth 1 of the
last two steps with {mistake_rate:g} and {repeat_rate:g}. In TextCraft a mistake is to look at the inventory, to craft
the goal before all is there, or to take a basic item that only other recipes of the list need.

The model learns to make the mistakes as it learns everything else. They make tasks neither hopeless nor certain: the
episodes of one task differ, and a group-relative method finds a signal. **So a part of what reinforcement learning
gains on this model is that it unlearns planted mistakes.** Whoever shows such a gain should say so, and show the
held-out tasks beside it.

Settings: seed {seed}, {batch_size} episodes a train step, AdamW at {lr:g} ({mistakes_lr:g} for the mistakes, {web_lr:g}
on the web) after {warmup_steps} steps of warm-up, falling to 0 in the practice and in each step after it, bf16 autocast
{bf16}, {threads} CPU thread(s). In the loss an action's tokens count 1, the environment's 0.2. Training took
{seconds:.0f} s.

## What it can do

Sampled at temperature 1 with fixed seeds, without a system prompt:

| tasks | tasks | episodes | turns at most | success | return | turns | sampled tokens an episode |
|---|---|---|---|---|---|---|---|
{rows}

"Easy" tasks of depth 2 are those that the expert solves in at most {easy_turns} turns.{pooled} To measure again:
`python -m tools.tiny_model.success_rates`.
"""


def render_card(
    *,
    command: str,
    num_parameters: int,
    vocab_size: int,
    seconds: float,
    settings: dict[str, float | int | bool],
    scores: Iterable[Score],
    pooled_success: float | None,
) -> str:
    """Return the model card in Markdown.

    Args:
        settings: the options of `tools.tiny_model.train`, by name.
        pooled_success: see `evaluate.pooled_success`; None where it was not measured.
    """
    rows = "\n".join(
        f"| {s.task_set} | {s.num_tasks} | {s.num_episodes} | {s.horizon} | {s.success_rate:.3f} | "
        f"{s.return_mean:.3f} | {s.num_turns_mean:.2f} | {s.sampled_tokens_mean:.0f} |"
        for s in scores
    )
    pooled = f"\nDepth 1 and easy depth 2 together: {pooled_success:.3f}." if pooled_success is not None else ""
    return _CARD.format(
        command=command,
        num_parameters=num_parameters,
        vocab_size=vocab_size,
        seconds=seconds,
        shares=", ".join(f"{share:.0%} are of {name}" for name, share in ENV_SHARES.items()),
        parts=", ".join(f"{share:.0%} are of the part {name}" for name, share in TEXTCRAFT_SHARES.items()),
        rows=rows or "| not measured | | | | | | | |",
        easy_turns=EASY_TURNS,
        pooled=pooled,
        **{key: value for key, value in settings.items() if key != "bf16"},
        bf16="on" if settings["bf16"] else "off",
    )
