"""Make the shipped tiny model: `python -m rllm_gym.tiny.train OUT --seed 0`."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import numpy as np
import typer

from rllm_gym.tiny.batches import encode, micro_batches
from rllm_gym.tiny.card import render_card
from rllm_gym.tiny.episodes import Plan
from rllm_gym.tiny.evaluate import evaluate_all, pooled_success
from rllm_gym.tiny.sources import Sources
from rllm_gym.tiny.tokenizer import train_tokenizer
from rllm_gym.tiny.wiring import wire_copying
from rllm_gym.tokens import ChatTokenizer
from rllm_gym.types import Sample

if TYPE_CHECKING:
    from transformers import Qwen2ForCausalLM, Qwen2Tokenizer

MAX_POSITIONS = 16384
MAX_GRAD_NORM = 1.0
NUM_TOKENIZER_EPISODES = 200  # of each world
CHECKPOINT = "training_state.pt"


@dataclass(frozen=True)
class Settings:
    """What the weights depend on; see the options of `main`."""

    seed: int = 0
    reading_steps: int = 450
    practice_steps: int = 300
    mistake_rate: float = 0.5
    repeat_rate: float = 0.6
    batch_size: int = 16
    lr: float = 2e-3
    warmup_steps: int = 40
    bf16: bool = True
    threads: int = 1

    @property
    def num_steps(self) -> int:
        return self.reading_steps + self.practice_steps

    def plan(self, step: int) -> tuple[Plan, float]:
        """Return how the episodes of a train step are played, and how many of them are under other names."""
        if step < self.reading_steps:  # short ones, to see many
            return Plan(0.1, 0.3, 0.03, max_turns=8, max_chars=1200), 0.9
        return Plan(self.mistake_rate, self.repeat_rate, 0.05, max_turns=8, max_chars=1200), 0.3

    def lr_at(self, step: int) -> float:
        """Return the learning rate: a warm-up, then constant, then falling to a twentieth during the practice."""
        warm = min(1.0, (step + 1) / self.warmup_steps)
        left = min(1.0, (self.num_steps - step) / max(1, self.practice_steps))
        return self.lr * warm * (0.05 + 0.95 * left)


def make_model(tokenizer: Qwen2Tokenizer, seed: int) -> Qwen2ForCausalLM:
    """Return the untrained model: Qwen2 of about 2.9 million parameters, the same for the same seed."""
    import torch
    from transformers import GenerationConfig, Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(seed)
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=256,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=512,
        max_position_embeddings=MAX_POSITIONS,
        rope_parameters={"rope_type": "default", "rope_theta": 1e5},
        tie_word_embeddings=True,
        use_sliding_window=False,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        dtype="float32",
    )
    model = Qwen2ForCausalLM(config)
    wire_copying(model)
    model.generation_config = GenerationConfig(
        do_sample=True,
        temperature=1.0,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return model


def draw_batch(sources: Sources, chat: ChatTokenizer, settings: Settings, step: int) -> list[Sample]:
    """Return the samples of one train step; they depend on nothing but the arguments."""
    rng = np.random.default_rng(np.random.SeedSequence((settings.seed, step)))
    plan, renamed_rate = settings.plan(step)
    return [encode(sources.draw(rng, plan, renamed_rate), chat) for _ in range(settings.batch_size)]


def backward(model: Qwen2ForCausalLM, samples: Sequence[Sample], *, use_bf16: bool) -> float:
    """Add the gradient of the weighted mean negative log-likelihood over all samples, and return that mean."""
    import torch

    total_weight = float(sum(sample.weights[1:].sum() for sample in samples))
    total_loss = 0.0
    for part in micro_batches(samples):
        # Right padding with weight 0; behind a causal mask no real token sees it.
        shape = len(part), max(len(sample) for sample in part)
        ids_BT, weight_BT = torch.zeros(shape, dtype=torch.long), torch.zeros(shape)
        for row, sample in enumerate(part):
            ids_BT[row, : len(sample)] = torch.from_numpy(sample.token_ids)
            weight_BT[row, : len(sample)] = torch.from_numpy(sample.weights)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=use_bf16):
            logits_BTV = model(input_ids=ids_BT[:, :-1], use_cache=False).logits
        nll_N = torch.nn.functional.cross_entropy(
            logits_BTV.float().flatten(0, 1), ids_BT[:, 1:].flatten(), reduction="none"
        )
        loss = (nll_N * weight_BT[:, 1:].flatten()).sum() / total_weight
        loss.backward()
        total_loss += loss.item()
    return total_loss


def train(
    model: Qwen2ForCausalLM,
    sources: Sources,
    chat: ChatTokenizer,
    settings: Settings,
    *,
    checkpoint: Path | None = None,
    checkpoint_every: int = 25,
    log_every: int = 10,
) -> None:
    """Train in two parts: reading, with names exchanged in most episodes; then practice, with planted mistakes.

    Args:
        checkpoint: a file that holds the state every `checkpoint_every` steps. If it is there already, training goes on
            from it: since a step's data depend on the seed and the step alone, the weights will be those of a run
            without interruption.
    """
    import torch

    optimizer = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.98), weight_decay=0.01)
    first_step = 0
    if checkpoint and checkpoint.exists():
        state = torch.load(checkpoint)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        first_step = state["step"]
        _say(f"Going on from step {first_step}.")
    model.train()
    start_s, num_tokens, losses = time.monotonic(), 0, list[float]()
    for step in range(first_step, settings.num_steps):
        samples = draw_batch(sources, chat, settings, step)
        losses.append(backward(model, samples, use_bf16=settings.bf16))
        torch.nn.utils.clip_grad_norm_(model.parameters(), MAX_GRAD_NORM)
        for group in optimizer.param_groups:
            group["lr"] = settings.lr_at(step)
        optimizer.step()
        optimizer.zero_grad()
        num_tokens += sum(len(sample) for sample in samples)
        num_done = step + 1
        if num_done % log_every == 0 or num_done == settings.num_steps:
            seconds = time.monotonic() - start_s
            _say(
                f"step {num_done}/{settings.num_steps}  loss {np.mean(losses):.4f}  {num_tokens:,} tokens  "
                f"{num_tokens / seconds:,.0f} tokens/s  {seconds:.0f} s"
            )
            losses.clear()
        if checkpoint and num_done % checkpoint_every == 0:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": num_done}
            torch.save(state, checkpoint.with_suffix(".new"))
            checkpoint.with_suffix(".new").rename(checkpoint)


def save(model: Qwen2ForCausalLM, out: Path) -> None:
    """Write what transformers and vLLM load beside the tokenizer: weights in bf16, to be loaded as float32."""
    import torch

    model.to(torch.bfloat16).save_pretrained(out)
    model.float()
    model.config.dtype = torch.float32
    model.config.save_pretrained(out)
    (out / "model.safetensors").chmod(0o644)  # written for its owner alone, and wheels keep modes


def main(
    out: Annotated[Path, typer.Argument(help="Folder to write the model to.")],
    seed: Annotated[int, typer.Option(help="Of the first weights and of all data.")] = Settings.seed,
    reading_steps: Annotated[int, typer.Option(help="Train steps on names exchanged.")] = Settings.reading_steps,
    practice_steps: Annotated[int, typer.Option(help="Train steps on mistakes, too.")] = Settings.practice_steps,
    mistake_rate: Annotated[float, typer.Option(help="Chance of a mistake in practice.")] = Settings.mistake_rate,
    repeat_rate: Annotated[float, typer.Option(help="Chance that it is made again.")] = Settings.repeat_rate,
    batch_size: Annotated[int, typer.Option(help="Episodes of one train step.")] = Settings.batch_size,
    lr: Annotated[float, typer.Option(help="AdamW's learning rate.")] = Settings.lr,
    warmup_steps: Annotated[int, typer.Option(help="Steps until it is reached.")] = Settings.warmup_steps,
    bf16: Annotated[bool, typer.Option(help="bf16 autocast: faster where the CPU has it.")] = Settings.bf16,
    threads: Annotated[int, typer.Option(help="CPU threads; more than are idle do harm.")] = Settings.threads,
    measure: Annotated[bool, typer.Option(help="Measure success at the end, with vLLM.")] = True,
) -> None:
    """Train the tiny model on the train splits of all worlds, from nothing, and write it with its model card.

    Interrupted, the same command goes on from the last checkpoint in OUT.
    """
    import torch

    for name, rate in (("mistake_rate", mistake_rate), ("repeat_rate", repeat_rate)):
        if not 0 <= rate < 1:
            raise typer.BadParameter(f"{name} must be at least 0 and below 1; got {rate}. Use 0.5.")
    settings = Settings(
        seed, reading_steps, practice_steps, mistake_rate, repeat_rate, batch_size, lr, warmup_steps, bf16, threads
    )
    start_s = time.monotonic()
    torch.set_num_threads(threads)
    out.mkdir(parents=True, exist_ok=True)
    sources = Sources()
    try:
        texts = sources.texts(np.random.default_rng(seed), NUM_TOKENIZER_EPISODES)
        tokenizer = train_tokenizer(texts, max_length=MAX_POSITIONS)
        tokenizer.save_pretrained(out)
        model = make_model(tokenizer, seed)
        _say(f"{len(tokenizer):,} tokens, {model.num_parameters():,} parameters, {threads} thread(s)")
        train(model, sources, ChatTokenizer(tokenizer), settings, checkpoint=out / CHECKPOINT)
    finally:
        sources.close()
    seconds = time.monotonic() - start_s
    save(model, out)
    (out / CHECKPOINT).unlink(missing_ok=True)
    scores = evaluate_all(out) if measure else []
    card = render_card(
        command=_command(settings),
        num_parameters=model.num_parameters(),
        vocab_size=len(tokenizer),
        seconds=seconds,
        settings=asdict(settings),
        scores=scores,
        pooled_success=pooled_success(scores) if scores else None,
    )
    (out / "README.md").write_text(card, encoding="utf-8")
    _say(f"The model and its card (README.md) are in {out}.")


def _command(settings: Settings) -> str:
    options = []
    for key, value in asdict(settings).items():
        name = key.replace("_", "-")
        options.append(f"--{name if value else 'no-' + name}" if isinstance(value, bool) else f"--{name} {value}")
    return " ".join(["python -m rllm_gym.tiny.train OUT", *options])


def _say(line: str) -> None:
    print(line, flush=True)  # progress is of use while it happens, also in a log file


if __name__ == "__main__":
    typer.run(main)
