"""Make the shipped tiny model: `python -m rllm_gym.tiny.train OUT --seed 0`."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import numpy as np
import typer

from rllm_gym.tiny import data
from rllm_gym.tiny.card import render_card
from rllm_gym.tiny.evaluate import evaluate_all
from rllm_gym.tiny.tokenizer import train_tokenizer

if TYPE_CHECKING:
    from transformers import Qwen2ForCausalLM, Qwen2Tokenizer

    from rllm_gym.envs.wrappers import TokenEnv

MAX_POSITIONS = 16384
MICRO_BATCH = 8  # rows of similar length, so that little is padding
MAX_GRAD_NORM = 1.0


def make_model(tokenizer: Qwen2Tokenizer, seed: int) -> Qwen2ForCausalLM:
    """Return the untrained model: Qwen2 of about 1.9 million parameters, the same for the same seed."""
    import torch
    from transformers import GenerationConfig, Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(seed)
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=192,
        num_hidden_layers=4,
        num_attention_heads=3,
        num_key_value_heads=1,
        intermediate_size=528,
        max_position_embeddings=MAX_POSITIONS,
        tie_word_embeddings=True,
        use_sliding_window=False,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        dtype="float32",
    )
    model = Qwen2ForCausalLM(config)
    model.generation_config = GenerationConfig(
        do_sample=True,
        temperature=1.0,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return model


def draw_batch(
    env: TokenEnv, items: dict[str, list[str]], *, key: tuple[int, ...], size: int, mistake_rate: float
) -> list[data.TrainingEpisode]:
    """Return the episodes of one step, shortest first; they depend on nothing but the arguments."""
    rng = np.random.default_rng(np.random.SeedSequence(key))
    episodes = [data.play(env, data.draw_item(items, rng), rng, mistake_rate) for _ in range(size)]
    return sorted(episodes, key=lambda episode: len(episode.ids))


def backward(model: Qwen2ForCausalLM, episodes: Sequence[data.TrainingEpisode], *, use_bf16: bool) -> float:
    """Add the gradient of the weighted mean negative log-likelihood over all episodes, and return that mean."""
    import torch

    total_weight = float(sum(episode.weights[1:].sum() for episode in episodes))
    total_loss = 0.0
    for start in range(0, len(episodes), MICRO_BATCH):
        part = episodes[start : start + MICRO_BATCH]
        # Right padding with weight 0; behind a causal mask no real token sees it.
        shape = len(part), max(len(episode.ids) for episode in part)
        ids_BT, weight_BT = torch.zeros(shape, dtype=torch.long), torch.zeros(shape)
        for row, episode in enumerate(part):
            ids_BT[row, : len(episode.ids)] = torch.from_numpy(episode.ids)
            weight_BT[row, : len(episode.ids)] = torch.from_numpy(episode.weights)
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
    tokenizer: Qwen2Tokenizer,
    *,
    seed: int,
    clean_steps: int,
    mistake_steps: int,
    mistake_rate: float,
    batch_size: int,
    lr: float,
    warmup_steps: int,
    use_bf16: bool,
    log_every: int,
) -> None:
    """Train in two parts: clean expert episodes, then episodes with planted mistakes."""
    import torch

    from rllm_gym.envs.wrappers import TokenEnv

    env = TokenEnv(data.training_world(), tokenizer=tokenizer)
    items = data.training_items()
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, betas=(0.9, 0.98), weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / warmup_steps))
    model.train()
    start_s, num_tokens, losses = time.monotonic(), 0, list[float]()
    num_steps = clean_steps + mistake_steps
    for step in range(num_steps):
        rate = 0.0 if step < clean_steps else mistake_rate
        episodes = draw_batch(env, items, key=(seed, step), size=batch_size, mistake_rate=rate)
        losses.append(backward(model, episodes, use_bf16=use_bf16))
        torch.nn.utils.clip_grad_norm_(model.parameters(), MAX_GRAD_NORM)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        num_tokens += sum(len(episode.ids) for episode in episodes)
        if (step + 1) % log_every == 0 or step + 1 == num_steps:
            seconds = time.monotonic() - start_s
            _say(
                f"step {step + 1}/{num_steps}  mistakes {rate:.2f}  loss {np.mean(losses):.4f}  "
                f"{num_tokens / seconds:,.0f} tokens/s  {seconds:.0f} s"
            )
            losses.clear()


def save(model: Qwen2ForCausalLM, tokenizer: Qwen2Tokenizer, out: Path) -> None:
    """Write the folder that transformers and vLLM load."""
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)
    (out / "model.safetensors").chmod(0o644)  # written for its owner alone, and wheels keep modes


def main(
    out: Annotated[Path, typer.Argument(help="Folder to write the model to.")],
    seed: Annotated[int, typer.Option(help="Of the first weights and of all data.")] = 0,
    clean_steps: Annotated[int, typer.Option(help="Train steps on the expert's own episodes.")] = 180,
    mistake_steps: Annotated[int, typer.Option(help="Train steps on episodes with planted mistakes.")] = 160,
    mistake_rate: Annotated[float, typer.Option(help="Fraction of these episodes' turns that are mistakes.")] = 0.65,
    batch_size: Annotated[int, typer.Option(help="Episodes of one train step.")] = 32,
    lr: Annotated[float, typer.Option(help="AdamW's learning rate.")] = 2e-3,
    warmup_steps: Annotated[int, typer.Option(help="Steps until the learning rate is reached.")] = 60,
    bf16: Annotated[bool, typer.Option(help="bf16 autocast: twice as fast where the CPU has it.")] = True,
    threads: Annotated[int, typer.Option(help="CPU threads. More than are idle make it slower, not faster.")] = 1,
    log_every: Annotated[int, typer.Option(help="Steps between two lines of progress.")] = 20,
    measure: Annotated[bool, typer.Option(help="Measure success at the end, with vLLM.")] = True,
) -> None:
    """Train the tiny model on the train split of TextCraft, from nothing, and write it with its model card."""
    import torch

    if not 0 <= mistake_rate < 1:
        raise typer.BadParameter(f"mistake_rate must be at least 0 and below 1; got {mistake_rate}. Use 0.65.")
    settings: dict[str, float | int | bool] = {
        "seed": seed,
        "clean_steps": clean_steps,
        "mistake_steps": mistake_steps,
        "mistake_rate": mistake_rate,
        "batch_size": batch_size,
        "lr": lr,
        "warmup_steps": warmup_steps,
        "bf16": bf16,
        "threads": threads,
    }
    start_s = time.monotonic()
    torch.set_num_threads(threads)
    tokenizer = train_tokenizer(data.tokenizer_texts(), max_length=MAX_POSITIONS)
    model = make_model(tokenizer, seed)
    _say(f"{len(tokenizer):,} tokens, {model.num_parameters():,} parameters, {threads} thread(s)")
    train(
        model,
        tokenizer,
        seed=seed,
        clean_steps=clean_steps,
        mistake_steps=mistake_steps,
        mistake_rate=mistake_rate,
        batch_size=batch_size,
        lr=lr,
        warmup_steps=warmup_steps,
        use_bf16=bf16,
        log_every=log_every,
    )
    seconds = time.monotonic() - start_s
    save(model, tokenizer, out)
    scores = evaluate_all(out) if measure else []
    card = render_card(
        command=_command(settings),
        num_parameters=model.num_parameters(),
        vocab_size=len(tokenizer),
        seconds=seconds,
        settings=settings,
        scores=scores,
    )
    (out / "README.md").write_text(card, encoding="utf-8")
    _say(f"The model and its card (README.md) are in {out}.")


def _command(settings: dict[str, float | int | bool]) -> str:
    options = []
    for key, value in settings.items():
        name = key.replace("_", "-")
        options.append(f"--{name if value else 'no-' + name}" if isinstance(value, bool) else f"--{name} {value}")
    return " ".join(["python -m rllm_gym.tiny.train OUT", *options])


def _say(line: str) -> None:
    print(line, flush=True)  # progress is of use while it happens, also in a log file


if __name__ == "__main__":
    typer.run(main)
