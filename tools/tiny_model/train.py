"""Make the shipped tiny model: `python -m tools.tiny_model.train OUT --seed 0`."""

from __future__ import annotations

import json
import shutil
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import numpy as np
import typer

from rllm_gym.errors import ConfigError
from tools.tiny_model.card import render_card
from tools.tiny_model.sources import Sources
from tools.tiny_model.stages import Settings, draw_episodes, run_stage, say, sft_config, write_conversations
from tools.tiny_model.success_rates import evaluate_all, pooled_success
from tools.tiny_model.tokenizer import train_tokenizer
from tools.tiny_model.wiring import wire_copying

if TYPE_CHECKING:
    from transformers import Qwen2ForCausalLM, Qwen2Tokenizer

MAX_POSITIONS = 16384
NUM_TOKENIZER_EPISODES = 200  # of each environment
WORK = "work"  # in OUT: conversations, checkpoints and the stages' models
START = "start"  # in it: the tokenizer and the untrained model
SETTINGS = "settings.json"
WEIGHTS = "model.safetensors"


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


def make_start(folder: Path, sources: Sources, seed: int) -> None:
    """Write the tokenizer and the untrained model; the folder is there once it is whole."""
    scratch = folder.with_suffix(".new")
    texts = sources.texts(np.random.default_rng(seed), NUM_TOKENIZER_EPISODES)
    tokenizer = train_tokenizer(texts, max_length=MAX_POSITIONS)
    tokenizer.save_pretrained(scratch)
    make_model(tokenizer, seed).save_pretrained(scratch)
    scratch.rename(folder)


def check_settings(work: Path, settings: Settings) -> None:
    """Make sure that what lies in `work` was begun with these settings, and note them where nothing was begun.

    Raises:
        ConfigError: it was begun with others; names one of them.
    """
    file, mine = work / SETTINGS, asdict(settings)
    if not file.exists():
        file.write_text(json.dumps(mine), encoding="utf-8")
        return
    theirs = json.loads(file.read_text(encoding="utf-8"))
    for name in mine:
        if theirs.get(name) != mine[name]:
            raise ConfigError(
                f"{work}: an interrupted training goes on with the settings that it was begun with, {name} "
                f"{theirs.get(name)}; got {mine[name]}. Give the same, or another OUT."
            )


def train(work: Path, sources: Sources, settings: Settings) -> Path:
    """Go through the stages, each from the model of the one before; returns the folder of the last one's.

    Args:
        work: holds what there is of an interrupted training, and gets the rest.
    """
    from rllm_gym.evaluation.export import export_policy

    model = work / START
    if not model.exists():
        make_start(model, sources, settings.seed)
    for stage in settings.stages:
        data, base_model, model = work / f"{stage.name}.jsonl", model, work / stage.name
        if model.exists():
            continue
        if not data.exists():
            say(f"{stage.name}: the experts play.")
            write_conversations(data, draw_episodes(stage, sources, settings))
        config = sft_config(stage, settings, data=data, base_model=base_model)
        checkpoint = run_stage(stage, config, work / f"{stage.name}_checkpoints", threads=settings.threads)
        scratch = model.with_suffix(".new")
        export_policy(checkpoint, scratch, overwrite=True)
        scratch.rename(model)
    return model


def save(start: Path, trained: Path, out: Path) -> Qwen2ForCausalLM:
    """Write what transformers and vLLM load: the trained weights in bf16, and the rest as it was at the start.

    The configuration names float32, so that the weights are loaded as that.
    """
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(trained, dtype=torch.bfloat16)
    model.save_pretrained(out)
    (out / WEIGHTS).chmod(0o644)  # written for its owner alone, and wheels keep modes
    for file in start.iterdir():
        if file.name != WEIGHTS:
            shutil.copy(file, out)
    return cast("Qwen2ForCausalLM", model)


def main(
    out: Annotated[Path, typer.Argument(help="Folder to write the model to.")],
    seed: Annotated[int, typer.Option(help="Of the first weights and of all data.")] = Settings.seed,
    reading_steps: Annotated[int, typer.Option(help="Train steps on names exchanged.")] = Settings.reading_steps,
    practice_steps: Annotated[int, typer.Option(help="Then on true names, mostly.")] = Settings.practice_steps,
    mistakes_steps: Annotated[int, typer.Option(help="Then with many mistakes.")] = Settings.mistakes_steps,
    web_steps: Annotated[int, typer.Option(help="Then on the web, half of the time.")] = Settings.web_steps,
    mistake_rate: Annotated[float, typer.Option(help="Chance of one, in simple tasks.")] = Settings.mistake_rate,
    repeat_rate: Annotated[float, typer.Option(help="Chance that it is made again.")] = Settings.repeat_rate,
    batch_size: Annotated[int, typer.Option(help="Episodes of one train step.")] = Settings.batch_size,
    lr: Annotated[float, typer.Option(help="AdamW's learning rate.")] = Settings.lr,
    mistakes_lr: Annotated[float, typer.Option(help="The same, with many mistakes.")] = Settings.mistakes_lr,
    web_lr: Annotated[float, typer.Option(help="The same, on the web.")] = Settings.web_lr,
    warmup_steps: Annotated[int, typer.Option(help="Steps until it is reached.")] = Settings.warmup_steps,
    bf16: Annotated[bool, typer.Option(help="bf16 autocast: faster where the CPU has it.")] = Settings.bf16,
    threads: Annotated[int, typer.Option(help="CPU threads; more than are idle do harm.")] = Settings.threads,
    measure: Annotated[bool, typer.Option(help="Measure success at the end, with vLLM.")] = True,
) -> None:
    """Train the tiny model on the train splits of all environments, from nothing, and write it with its model card.

    Interrupted, the same command goes on from the last checkpoint in OUT.
    """
    for name, rate in (("mistake_rate", mistake_rate), ("repeat_rate", repeat_rate)):
        if not 0 <= rate < 1:
            raise typer.BadParameter(f"{name} must be at least 0 and below 1; got {rate}. Use 0.5.")
    settings = Settings(
        seed=seed,
        reading_steps=reading_steps,
        practice_steps=practice_steps,
        mistakes_steps=mistakes_steps,
        web_steps=web_steps,
        mistake_rate=mistake_rate,
        repeat_rate=repeat_rate,
        batch_size=batch_size,
        lr=lr,
        mistakes_lr=mistakes_lr,
        web_lr=web_lr,
        warmup_steps=warmup_steps,
        bf16=bf16,
        threads=threads,
    )
    work = out / WORK
    work.mkdir(parents=True, exist_ok=True)
    try:
        check_settings(work, settings)
    except ConfigError as error:
        raise typer.BadParameter(str(error)) from error
    start_s = time.monotonic()
    sources = Sources()
    try:
        trained = train(work, sources, settings)
    finally:
        sources.close()
    seconds = time.monotonic() - start_s
    model = save(work / START, trained, out)
    scores = evaluate_all(out) if measure else []
    card = render_card(
        command=_command(settings),
        num_parameters=model.num_parameters(),
        vocab_size=model.config.vocab_size,
        seconds=seconds,
        settings=asdict(settings),
        scores=scores,
        pooled_success=pooled_success(scores) if scores else None,
    )
    (out / "README.md").write_text(card, encoding="utf-8")
    shutil.rmtree(work)  # last: an interrupted measurement begins again without training
    say(f"The model and its card (README.md) are in {out}.")


def _command(settings: Settings) -> str:
    options = []
    for key, value in asdict(settings).items():
        name = key.replace("_", "-")
        options.append(f"--{name if value else 'no-' + name}" if isinstance(value, bool) else f"--{name} {value}")
    return " ".join(["python -m tools.tiny_model.train OUT", *options])


if __name__ == "__main__":
    typer.run(main)
