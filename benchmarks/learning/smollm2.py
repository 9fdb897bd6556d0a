"""SmolLM2-135M-Instruct, on two cores: SFT on the expert's episodes, then GRPO.

python -m benchmarks.learning.smollm2 sft FOLDER          # what GRPO begins with; plays the panels with it
python -m benchmarks.learning.smollm2 grpo FOLDER SEED    # trains from there; plays the panels with the end
python -m benchmarks.learning.smollm2 more FOLDER SEED    # trains on from grpo's end, at its last horizon; plays them
python -m benchmarks.learning.smollm2 policy FOLDER NAME  # makes FOLDER/NAME of a kept adapter, for `rllib evaluate`
python -m benchmarks.learning.smollm2 untrained FOLDER    # plays the panels with the model as it came
python -m benchmarks.learning.smollm2 report              # the table of the kept rows, and their figure
python -m benchmarks.learning.smollm2 panels              # writes its files in panels/ anew

On BabyAI (`plan_smollm2_babyai.md`), or with `--on textcraft` on TextCraft (`plan_smollm2.md`).

`make smollm2` makes the model. Each is a sequence of the commands that a reader has, which are printed: `rllib train
file` of the shipped examples, `rllm-gym export --adapter` and `rllib evaluate --panel`. Called again they go on where
they stopped; a row is appended to FOLDER/smollm2_babyai.jsonl when a policy has played its panels. An adapter that is
in `smollm2_babyai_adapters/` is not trained again.
"""

from __future__ import annotations

import argparse
import json
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from benchmarks.learning import tasks
from benchmarks.learning.training import LEARNER_METRICS, SAMPLER_METRICS

BASE_MODEL = "models/smollm2-135m-instruct"
REPOSITORY = Path(__file__).parents[2]
TEXTCRAFT_ENV = "rllm_gym:rllm_gym/TextCraft-v0"
OPTIONS = {"evaluation_interval": None}  # the panels are played apart
# Go to an object or to a door, open a door, pick something up: nine in ten are solved within 4 turns.
LEVELS = (5, 9, 10, 11, 14, 19, 20, 30)
WINDOW = 5  # train steps of the figure's mean
NUM_HELD_OUT, NUM_TRAINED, NUM_OTHER = 200, 100, 60  # tasks of the panels
MAX_NEW_TOKENS = 48
MORE_SEED = 1000  # what is added to a seed for its second run, which draws other tasks
HELD_OUT, TRAINED, OTHER = "held_out", "trained", "other"
ADAPTER_FILE, ADAPTER_CONFIG = "adapter_model.safetensors", "adapter_config.json"
PANELS = (HELD_OUT, TRAINED, OTHER)
CONFIDENCE = 0.975  # of a difference: a claim is read twice, after GRPO and after more of it
KEPT = ("panel_hash", "success_rate", "success_interval", "by_env")  # of a result


@dataclass(frozen=True)
class Study:
    """One environment to train in, with its files.

    Args:
        name: of its examples' folder.
        prefix: of its files' names, which are beside this one and in `panels/`.
        horizon: of its panels, and the last of its trainings.
        env_config: of its trainings.
        find_tasks: returns the held-out tasks, and training tasks in the order in which its panel takes them.
        other: the environment that is never trained in, and its panel's tasks.
    """

    name: str
    env: str
    prefix: str
    horizon: int
    env_config: Mapping[str, Any]
    find_tasks: Callable[[], tuple[list[str], list[str]]]
    other: tuple[str, Callable[[], list[str]]]

    @property
    def rows(self) -> Path:
        return Path(__file__).with_name(f"{self.prefix}.jsonl")

    @property
    def adapters(self) -> Path:
        """The folder of the trained adapters, in bfloat16, 5 MB each."""
        return Path(__file__).with_name(f"{self.prefix}_adapters")

    @property
    def examples(self) -> Path:
        return REPOSITORY / "tuned_examples" / self.name

    @property
    def figure(self) -> Path:
        return REPOSITORY / "docs" / "images" / f"{self.prefix}.png"

    def panel_file(self, kind: str) -> Path:
        return tasks.FOLDER / f"{self.prefix}_{kind}.json"


def _ids(env: str, **options: Any) -> list[str]:
    return list(gymnasium.make(env, obs_type="text", **options).unwrapped.item_ids)  # type: ignore[attr-defined]


def _textcraft_tasks() -> tuple[list[str], list[str]]:
    """Hold out all of the `eval` split and as many others as are missing."""
    held_out, others = (_ids(TEXTCRAFT_ENV, depth=[1, 2], split=split) for split in ("eval", "train"))
    others = [str(item) for item in np.random.default_rng(0).permutation(others)]
    num_more = NUM_HELD_OUT - len(held_out)
    return held_out + others[:num_more], others[num_more:]


def _babyai_tasks() -> tuple[list[str], list[str]]:
    """Hold out tasks of seeds that are in neither split, as many of each level; none begins as a training task does."""
    env = tasks.BABYAI.make_env()

    def seen_first(item_id: str) -> str:
        return env.reset(seed=0, options={"item_id": item_id})[0]

    trained = [str(item) for item in np.random.default_rng(0).permutation(_ids(tasks.BABYAI.env, levels=LEVELS))]
    known = {seen_first(item_id) for item_id in trained}
    held_out: list[str] = []
    for level in LEVELS:
        items = tasks.babyai_items(tasks.BABYAI_HELD_OUT, [level])
        held_out += [item_id for item_id in items if seen_first(item_id) not in known][: NUM_HELD_OUT // len(LEVELS)]
    env.close()
    return held_out, trained


def _babyai_of_the_horizon_study() -> list[str]:
    held_out = tasks.BABYAI.by_length(tasks.BABYAI.tasks["held_out"])
    return tasks.balanced(held_out, NUM_OTHER, seed=tasks.PANEL_SEED)


def _textcraft_held_out() -> list[str]:
    return [str(item) for item in np.random.default_rng(1).permutation(_textcraft_tasks()[0])][:NUM_OTHER]


_TEXTCRAFT_FILES = {
    split: str(tasks.FOLDER / f"smollm2_{name}_tasks.json")
    for split, name in (("train", "training"), ("eval", "held_out"))
}
STUDIES = {
    study.name: study
    for study in (
        Study(
            "babyai",
            tasks.BABYAI.env,
            "smollm2_babyai",
            4,
            {"levels": LEVELS},
            _babyai_tasks,
            (TEXTCRAFT_ENV, _textcraft_held_out),
        ),
        Study(
            "textcraft",
            TEXTCRAFT_ENV,
            "smollm2",
            8,
            {"splits": _TEXTCRAFT_FILES},
            _textcraft_tasks,
            (tasks.BABYAI.env, _babyai_of_the_horizon_study),
        ),
    )
}


def write_panels(study: Study) -> None:
    """Write the panels' tasks, and for TextCraft the two lists of tasks that its trainings read."""
    held_out, trained = study.find_tasks()
    items_of_split = {"train": trained, "eval": held_out}
    for split, file in study.env_config.get("splits", {}).items():
        Path(file).write_text(json.dumps(items_of_split[split], indent=1) + "\n", encoding="utf-8")
    other_env, find_other = study.other
    chosen = {
        HELD_OUT: (study.env, held_out),
        TRAINED: (study.env, trained[:NUM_TRAINED]),
        OTHER: (other_env, find_other()),
    }
    for kind, (env, items) in chosen.items():
        command = ["panel", env, "--split", "all", "--env-config", json.dumps({"item_ids": items})]
        command += ["--episodes", str(len(items)), "--seed", str(tasks.PANEL_SEED)]
        command += ["--horizon", str(study.horizon), "--max-new-tokens", str(MAX_NEW_TOKENS)]
        found = subprocess.run([_tool("rllm-gym"), *command], check=True, stdout=subprocess.PIPE, text=True).stdout
        study.panel_file(kind).write_text(found, encoding="utf-8")


def sft(study: Study, folder: Path) -> None:
    """Make FOLDER/sft, the policy that GRPO begins with, and its row."""
    start = merged(study, "sft", folder, Path(BASE_MODEL), lambda: train(study, "sft_smollm2_135m", folder, {}))
    play(study, folder, "sft", start)


def grpo(study: Study, folder: Path, seed: int) -> None:
    """Train from FOLDER/sft; make FOLDER/grpo-SEED, and its row."""
    play_trained(study, folder, f"grpo-{seed}", grpo_policy(study, folder, seed))


def more(study: Study, folder: Path, seed: int) -> None:
    """Train on from FOLDER/grpo-SEED, with an adapter and an optimizer that begin anew; make FOLDER/more-SEED."""
    name, start = f"more-{seed}", grpo_policy(study, folder, seed)
    options = {"seed": MORE_SEED + seed, "scaling_inter": None, "max_episode_steps": study.horizon}
    play_trained(study, folder, name, trained_by_grpo(study, name, folder, start, options))


def grpo_policy(study: Study, folder: Path, seed: int) -> Path:
    return trained_by_grpo(study, f"grpo-{seed}", folder, folder / "sft", {"seed": seed})


def trained_by_grpo(study: Study, name: str, folder: Path, start: Path, options: Mapping[str, Any]) -> Path:
    options = {"base_model": str(start), **options}
    runs = folder / f"runs-{name}"
    return merged(study, name, folder, start, lambda: train(study, "grpo_smollm2_135m", runs, options))


def play_trained(study: Study, folder: Path, name: str, policy: Path) -> None:
    runs = folder / f"runs-{name}"
    play(study, folder, name, policy, start="sft", **({"curve": curve_of(runs)} if runs.is_dir() else {}))


def merged(study: Study, name: str, folder: Path, base: Path, make_run: Callable[[], Path]) -> Path:
    """Return FOLDER/NAME: a base model with an adapter, which is trained where it is not kept yet."""
    if not (study.adapters / name / ADAPTER_FILE).is_file():
        keep_adapter(make_run(), study.adapters / name, base)
    return policy(study, folder, name)


def keep_adapter(run: Path, kept: Path, base: Path) -> None:
    """Export a run's adapter in bfloat16, without this machine's paths."""
    from safetensors.torch import load_file, save_file

    call("rllm-gym", "export", run, kept, "--adapter", "--force")
    (kept / "README.md").unlink()  # peft's, which has paths
    weights = load_file(kept / ADAPTER_FILE)
    save_file({key: weight.bfloat16() for key, weight in weights.items()}, kept / ADAPTER_FILE)
    settings = json.loads((kept / ADAPTER_CONFIG).read_text(encoding="utf-8"))
    settings["base_model_name_or_path"] = base.name
    (kept / ADAPTER_CONFIG).write_text(json.dumps(settings, indent=1) + "\n", encoding="utf-8")


def policy(study: Study, folder: Path, name: str) -> Path:
    """Return FOLDER/NAME, made of a kept adapter and the policy that it was trained from, if it is not there yet.

    Raises:
        ValueError: there is no such adapter, or no model to add it to.
    """
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    kept, made = study.adapters / name, folder / name
    if (made / "model.safetensors").is_file():
        return made
    if not (kept / ADAPTER_FILE).is_file():
        known = ", ".join(sorted(file.parent.name for file in study.adapters.glob(f"*/{ADAPTER_FILE}"))) or "none"
        raise ValueError(f"{study.adapters.name}/ has no adapter {name!r}, but: {known}. `sft` and `grpo` train them.")
    start = json.loads((kept / ADAPTER_CONFIG).read_text(encoding="utf-8"))["base_model_name_or_path"]
    base = Path(BASE_MODEL) if start == Path(BASE_MODEL).name else policy(study, folder, start)
    if not base.is_dir():
        raise ValueError(f"{base}: no such folder. `make smollm2` makes it.")
    shutil.copytree(base, made, dirs_exist_ok=True, ignore=shutil.ignore_patterns("*.safetensors"))
    lm = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    PeftModel.from_pretrained(lm, kept).merge_and_unload().save_pretrained(made)
    return made


def train(study: Study, example: str, storage: Path, options: Mapping[str, Any]) -> Path:
    """Train as a shipped example says, and return the run's folder."""
    resume = ["--resume"] if any(storage.glob("*/*/checkpoint_*")) else []
    config = json.dumps({**OPTIONS, "env_config": study.env_config, **options})
    call("rllib", "train", "file", f"{study.name}/{example}", "--storage-path", storage, "--config", config, *resume)
    return storage / f"{study.name}_{example}"


def play(study: Study, folder: Path, policy_name: str, policy: str | Path, **more: Any) -> None:
    """Play the panels that have not been played with a policy, and append a row."""
    rows = read_rows(folder / study.rows.name)
    if policy_name in {row["policy"] for row in rows}:
        return
    readings = {}
    for kind in PANELS:
        out = folder / "panels" / f"{policy_name}-{kind}"
        if not (out / "result.json").is_file():
            resume = ["--resume"] if out.is_dir() else []
            call("rllib", "evaluate", policy, "--panel", study.panel_file(kind), "--out", out, *resume)
        found = json.loads((out / "result.json").read_text(encoding="utf-8"))
        readings[kind] = {name: found[name] for name in KEPT} | {"model": policy_name}
    with (folder / study.rows.name).open("a", encoding="utf-8") as file:
        file.write(json.dumps({"policy": policy_name, "panels": readings, **more}) + "\n")


def curve_of(storage: Path) -> list[dict[str, Any]]:
    """Return what Tune wrote of each train step; a step that was made twice counts as it was made last."""
    [file] = storage.glob("*/*/result.json")
    steps = {}
    for line in file.read_text(encoding="utf-8").splitlines():
        result = json.loads(line)
        sampled, learnt = result["env_runners"], result["learners"]["default_policy"]
        steps[result["training_iteration"]] = {
            "horizon": int(result["max_episode_steps"]),
            "tokens": int(sampled["num_sampled_tokens"]),
            **{name: round(float(sampled[name]), 4) for name in SAMPLER_METRICS},
            **{name: round(float(learnt[name]), 5) for name in LEARNER_METRICS},
            **{name: round(float(result[name]), 1) for name in ("sampling_s", "learning_s", "time_this_iter_s")},
        }
    return [steps[k] for k in sorted(steps)]


def read_rows(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()] if file.is_file() else []


def call(program: str, *arguments: str | Path) -> None:
    command = [_tool(program), *map(str, arguments)]
    print(f"$ {shlex.join([program, *command[1:]])}", flush=True)
    subprocess.run(command, check=True)


def _tool(program: str) -> str:
    return str(Path(sys.executable).with_name(program))


def report(file: Path, figure: Path, other_env: str) -> None:
    """Print each policy's success with 95 % intervals, its gain, paired by task, with 97.5 % ones, and draw them."""
    from rllm_gym.evaluation.compare import compare

    in_order = sorted(read_rows(file), key=lambda row: row["policy"] != "untrained")
    rows = {row["policy"]: row for row in in_order}
    draw(rows, figure)
    print(f"| policy | held-out tasks | training tasks | {other_env} |\n|---|---|---|---|")
    for name, row in rows.items():
        found = [row["panels"][kind] for kind in PANELS]
        cells = ["{:.3f} [{:.3f}, {:.3f}]".format(of["success_rate"], *of["success_interval"]) for of in found]
        print(f"| {name} | {' | '.join(cells)} |")
    for name, row in rows.items():
        for other in sorted({"untrained", row.get("start", "untrained"), first_part(name)} & rows.keys() - {name}):
            for kind in PANELS:
                pair = [rows[other]["panels"][kind], row["panels"][kind]]
                [found] = compare(pair, confidence=CONFIDENCE)
                low, high = found["interval"]
                print(f"{kind}: {name} less {other}: {found['difference']:+.3f} [{low:+.3f}, {high:+.3f}]")
        if curve := row.get("curve"):
            tokens = sum(step["tokens"] for step in curve)
            seconds = [sum(step[part] for step in curve) for part in ("sampling_s", "learning_s", "time_this_iter_s")]
            print(f"{name}: {len(curve)} train steps, {tokens:,} sampled tokens; sampling {seconds[0]:.0f} s, learning "
                  f"{seconds[1]:.0f} s, together {seconds[2]:.0f} s")  # fmt: skip


def first_part(name: str) -> str:
    """Return the policy that `more` trained on to get this one; "" for a policy of another kind."""
    return name.replace("more-", "grpo-") if name.startswith("more-") else ""


def draw(rows: Mapping[str, dict[str, Any]], file: Path) -> None:
    """Draw GRPO's success at each train step with the horizon's stages, and each policy's on held-out tasks."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.5), sharey=True, layout="constrained", width_ratios=(2, 1))
    curves = {name: row["curve"] for name, row in rows.items() if row.get("curve")}
    stages: dict[int, set[int]] = {}  # by the train steps before: the horizons that runs go on at
    for number, (name, curve) in enumerate(curves.items()):
        before = curves.get(first_part(name), [])
        success = [step["success_rate"] for step in curve]
        steps = len(before) + 1 + np.arange(len(curve))
        means = [np.mean(success[max(0, k - WINDOW) : k]) for k in range(1, len(curve) + 1)]
        left.plot(steps, success, ".", color=f"C{number}", alpha=0.3)
        left.plot(steps, means, color=f"C{number}", label=f"{name}, mean of {WINDOW} train steps")
        horizons = [step["horizon"] for step in curve]
        for k in (k for k in range(len(curve)) if k == 0 or horizons[k] != horizons[k - 1]):
            stages.setdefault(len(before) + k, set()).add(horizons[k])
    for k, begun in stages.items():
        left.axvline(k + 0.5, color="grey", linestyle=":")
        left.text(k + 0.8, 0.97, f"horizon {' or '.join(map(str, sorted(begun)))}", fontsize="small", va="top")
    left.set(xlabel="train step", ylabel="success in training", ylim=(0, 1))
    if curves:
        left.legend(fontsize="small", loc="lower right")
    for number, row in enumerate(rows.values()):
        held_out = row["panels"][HELD_OUT]
        rate, (low, high) = held_out["success_rate"], held_out["success_interval"]
        right.bar(number, rate, color="C2")
        right.errorbar(number, rate, [[rate - low], [high - rate]], color="black", capsize=4)
    right.set_xticks(range(len(rows)), list(rows), rotation=20, fontsize="small")
    right.set_ylabel("success on held-out tasks")
    right.set_xlabel(f"{NUM_HELD_OUT} held-out tasks, 95 % intervals")
    figure.savefig(file, dpi=120)
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--on", choices=STUDIES, default="babyai", help="where it is trained")
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("sft", "grpo", "more", "policy", "untrained"):
        command = commands.add_parser(name)
        command.add_argument("folder", type=lambda name: Path(name).absolute())
        if name in ("grpo", "more"):
            command.add_argument("seed", type=int)
        if name == "policy":
            command.add_argument("name", help="such as sft")
    of_report = commands.add_parser("report")
    of_report.add_argument("--rows", type=Path, help="those that are kept, by default")
    of_report.add_argument("--figure", type=Path, help="that of docs/images, by default")
    commands.add_parser("panels")
    given = parser.parse_args()
    study = STUDIES[given.on]
    if given.command == "panels":
        write_panels(study)
    elif given.command == "report":
        report(given.rows or study.rows, given.figure or study.figure, study.other[0].split("/")[-1])
    elif given.command == "grpo":
        grpo(study, given.folder, given.seed)
    elif given.command == "more":
        more(study, given.folder, given.seed)
    elif given.command == "sft":
        sft(study, given.folder)
    elif given.command == "policy":
        try:
            print(policy(study, given.folder, given.name))
        except ValueError as error:
            parser.error(str(error))
    else:
        play(study, given.folder, "untrained", BASE_MODEL)


if __name__ == "__main__":
    main()
