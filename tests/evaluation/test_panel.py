"""A panel means the same tasks wherever it is played, and its hash says which."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import multiprocessing
import random

import pytest
from typer.testing import CliRunner

from rllm_gym.cli.main import make_rllib_app, make_rllm_gym_app
from rllm_gym.envs.base import StepResult, TextEnv
from rllm_gym.envs.textcraft.env import TextCraftEnv
from rllm_gym.envs.textcraft.recipes import load_book
from rllm_gym.errors import ConfigError
from rllm_gym.evaluation.panel import hash_panels, make_panel, read_panel
from rllm_gym.evaluation.published_lists import read_test_list
from rllm_gym.options.common import SamplingOptions
from rllm_gym.rollout.environments import EnvironmentSpec, list_item_ids, make_text_env, tasks_trained_on
from rllm_gym.types import SamplingParams

rllib = make_rllib_app()
app = make_rllm_gym_app()

TEXTCRAFT = "rllm_gym:rllm_gym/TextCraft-v0"


def panel(num_tasks=20, *, env=TEXTCRAFT, env_config=None, **changes):
    spec = EnvironmentSpec("env", env, env_config or {})
    settings = {"split": "eval", "samples": 1, "seed": 3, "horizon": 8, "sampling": SamplingParams(64)}
    return make_panel(spec, num_tasks=num_tasks, **{**settings, **changes})


def test_a_panels_file_gives_it_back(tmp_path):
    made = panel(env_config={"depth": [1, 2]}, samples=4)
    file = tmp_path / "panel.json"
    file.write_text(made.to_json())
    read = read_panel(file)
    assert read == made
    assert read.hash == json.loads(file.read_text())["panel_hash"]
    assert len(read.hash) == 64
    file.write_text(made.to_json().replace('"horizon": 8', '"horizon": 9'))
    with pytest.raises(ConfigError, match="is not as it was written"):
        read_panel(file)
    file.write_text("{}")
    with pytest.raises(ConfigError, match=r"must be a file that `rllm-gym panel` wrote"):
        read_panel(file)


def test_the_hash_is_that_of_the_canonical_json():
    made = dataclasses.replace(panel(1), item_ids=["textcraft_3"], seeds=[7], env_config={"depth": 1})
    text = (
        '{"env":"rllm_gym:rllm_gym/TextCraft-v0","env_config":{"depth":1},"horizon":8,"item_ids":["textcraft_3"],'
        '"sampling":{"max_new_tokens":64,"samples":1,"temperature":1.0,"top_k":0,"top_p":1.0},"seeds":[7]}'
    )
    assert made.hash == hashlib.sha256(text.encode()).hexdigest()


def test_whatever_changes_an_episode_changes_the_hash_and_nothing_else_does():
    made = panel()
    changed = [
        panel(19), panel(seed=4), panel(split="train"), panel(samples=2), panel(horizon=9),
        panel(sampling=SamplingParams(65)), panel(sampling=SamplingParams(64, temperature=0.5)),
        panel(env_config={"system_prompt": ""}), panel(env="rllm_gym:rllm_gym/BabyAI-v0"),
    ]  # fmt: skip
    assert len({made.hash, *(other.hash for other in changed)}) == 10
    same_tasks = panel(env_config={"splits": {"eval": list(made.item_ids)}}, item_ids=made.item_ids)
    assert same_tasks.hash == made.hash  # how the tasks were chosen says nothing about them
    assert hash_panels([made, changed[0]]) == hash_panels([changed[0], made]) != made.hash
    assert hash_panels([made]) == made.hash


def first_observations(env, env_config, tasks):
    """Return {task number: first observation}, of one environment that plays them one after the other."""
    played = make_text_env(EnvironmentSpec("env", env, env_config))
    try:
        return {k: played.reset(seed=seed, options={"item_id": item_id})[0] for k, item_id, seed in tasks}
    finally:
        played.close()


@pytest.mark.parametrize("env", [TEXTCRAFT, "rllm_gym:rllm_gym/BabyAI-v0"])
def test_a_panel_begins_alike_in_any_number_of_processes_and_in_any_order(env, tmp_path):
    if "BabyAI" in env:
        pytest.importorskip("minigrid")
    file = tmp_path / "panel.json"
    file.write_text(panel(24, env=env).to_json())
    read = read_panel(file)
    tasks = list(zip(range(len(read)), read.item_ids, read.seeds, strict=True))
    expected = first_observations(env, read.env_config, tasks)
    assert len(set(expected.values())) > 12
    random.Random(0).shuffle(tasks)
    # A fresh interpreter each, with string hashes of its own.
    with multiprocessing.get_context("spawn").Pool(3) as pool:
        parts = pool.starmap(first_observations, [(env, dict(read.env_config), tasks[k::3]) for k in range(3)])
    assert {k: text for part in parts for k, text in part.items()} == expected


def test_the_command_writes_a_panel(tmp_path):
    arguments = ["panel", "TextCraft-v0", "--horizon", "6", "--episodes", "5", "--env-config", '{"depth": 1}']
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    file = tmp_path / "panel.json"
    file.write_text(result.stdout)
    read = read_panel(file)
    assert (len(read), read.horizon, read.env_config, read.split) == (5, 6, {"depth": 1}, "eval")
    refused = CliRunner().invoke(app, [*arguments[:-1], '{"deep": 1}'])
    assert refused.exit_code == 2
    assert "deep" in refused.stderr
    assert refused.stderr.count("\n") == 1


def test_a_panel_samples_as_the_options_defaults_do():
    shown = CliRunner().invoke(app, ["panel", "TextCraft-v0", "--horizon", "6", "--episodes", "1"]).stdout
    options = {name: getattr(SamplingOptions, name) for name in ("max_new_tokens", "temperature", "top_p", "top_k")}
    assert json.loads(shown)["sampling"] == {**options, "samples": 1}


def test_options_that_would_do_nothing_are_refused(tmp_path):
    file = tmp_path / "panel.json"
    file.write_text(panel(1).to_json())
    refused = CliRunner().invoke(rllib, ["evaluate", "tiny", "--panel", str(file), "--episodes", "100"])
    assert refused.exit_code == 2
    assert refused.stderr == (
        "--panel: it says the environment, its tasks, horizon and sampling; got --episodes as well. Leave it out.\n"
    )
    refused = CliRunner().invoke(
        app, ["panel", "TextCraft-v0", "--horizon", "6", "--from", str(file), "--split", "train"]
    )
    assert refused.stderr == "--from: the list says which tasks are played; got --split as well. Leave it out.\n"


def write_list(path, *item_ids):
    path.write_text("".join(json.dumps({"item_id": item_id, "conversations": []}) + "\n" for item_id in item_ids))
    return path


def test_agentgym_rls_lists_become_panels_where_the_items_are_the_same(tmp_path):
    pytest.importorskip("minigrid")
    file = write_list(tmp_path / "test.json", "babyai_17", "babyai_3")
    result = CliRunner().invoke(app, ["panel", "BabyAI-v0", "--horizon", "6", "--from", str(file)])
    assert json.loads(result.stdout)["item_ids"] == ["babyai_17", "babyai_3"]
    babyai = EnvironmentSpec("BabyAI-v0", "rllm_gym:rllm_gym/BabyAI-v0")
    for item_ids, message in [
        (["babyai_16000"], "BabyAI-v0 has no item 'babyai_16000' of AgentGym's"),
        (["textcraft_3"], r"items must be like babyai_17; got 'textcraft_3' in entry .*:1\."),
        ([], "must hold tasks; got none"),
    ]:
        with pytest.raises(ConfigError, match=message):
            read_test_list(write_list(file, *item_ids), babyai)
    file.write_text("{")
    with pytest.raises(ConfigError, match="must be JSON or JSON Lines"):
        read_test_list(file, babyai)


def write_published(folder, name, **categories):
    """A folder as AgentGym-RL's scripts read one: a test list, and a list for each category; JSON arrays, indented."""
    folder.mkdir()
    lists = {f"{name}_test": [item_id for item_ids in categories.values() for item_id in item_ids], **categories}
    for stem, item_ids in lists.items():
        rows = [{"item_id": item_id} for item_id in item_ids]
        (folder / f"{stem}.json").write_text(json.dumps(rows, indent=4))
    return folder


def test_a_folder_of_lists_gives_the_categories_too(tmp_path):
    pytest.importorskip("minigrid")
    # Levels 5, 1 and 31 with seeds 45, 46 and 321, as far as the published list goes.
    folder = write_published(tmp_path / "babyai", "babyai", goto=["babyai_1804", "babyai_1840"], find=["babyai_12870"])
    result = CliRunner().invoke(app, ["panel", "BabyAI-v0", "--horizon", "20", "--from", str(folder)])
    assert result.exit_code == 0, result.output
    file = tmp_path / "panel.json"
    file.write_text(result.stdout)
    read = read_panel(file)
    assert read.item_ids == ["babyai_1804", "babyai_1840", "babyai_12870"]
    assert read.categories == {"babyai_1804": "goto", "babyai_1840": "goto", "babyai_12870": "find"}
    alone = CliRunner().invoke(
        app, ["panel", "BabyAI-v0", "--horizon", "20", "--from", str(folder / "babyai_test.json")]
    )
    assert json.loads(alone.stdout)["panel_hash"] == read.hash  # names are no tasks
    assert "categories" not in json.loads(alone.stdout)
    assert set(first_observations(read.env, {}, [(0, "babyai_12870", 0)])) == {0}
    (folder / "babyai_test.json").rename(folder / "all.json")
    refused = CliRunner().invoke(app, ["panel", "BabyAI-v0", "--horizon", "20", "--from", str(folder)])
    assert refused.exit_code == 2
    assert "one list that ends in _test.json; got 0 in" in refused.stderr


def test_published_lists_split_an_environment_for_training(tmp_path):
    pytest.importorskip("minigrid")
    train = write_list(tmp_path / "babyai_train.json", "babyai_0", "babyai_11155")
    test = write_list(tmp_path / "babyai_test.json", "babyai_12870")
    babyai = EnvironmentSpec(
        "BabyAI-v0", "rllm_gym:rllm_gym/BabyAI-v0", {"splits": {"train": str(train), "eval": str(test)}}
    )
    assert list_item_ids(babyai, "train") == ["babyai_0", "babyai_11155"]
    assert list_item_ids(babyai, "eval") == ["babyai_12870"]


def test_searchqas_lists_name_the_data_set_of_an_item(tmp_path):
    pytest.importorskip("pyarrow")
    pytest.importorskip("bm25s")
    data = tmp_path / "data.jsonl"
    rows = [("nq", "test", 7), ("triviaqa", "test", 12_545 - 3610), ("nq", "train", 3)]
    data.write_text(
        "".join(
            json.dumps(
                {
                    "data_source": dataset,
                    "question": f"Who is {index}?",
                    "golden_answers": ["me"],
                    "extra_info": {"split": split, "index": index},
                }
            )
            + "\n"
            for dataset, split, index in rows
        )
    )
    searchqa = EnvironmentSpec("SearchQA-v0", "rllm_gym:rllm_gym/SearchQA-v0", {"data": str(data)})
    file = write_list(tmp_path / "searchqa_test.json", "nq_7", "triviaqa_12545", "nq_51716", "searchqa_7")
    assert read_test_list(file, searchqa) == ["searchqa_7", "searchqa_12545", "searchqa_51716", "searchqa_7"]
    for item_id, message in [
        ("nq_12545", r"items must be like searchqa_17; got 'nq_12545'"),  # a number of TriviaQA's
        ("nq_8", r"SearchQA-v0 has no item 'searchqa_8' of AgentGym's"),  # not in the file
    ]:
        with pytest.raises(ConfigError, match=message):
            read_test_list(write_list(file, item_id), searchqa)
    splits = {"splits": {"train": ["nq_51716"], "eval": ["triviaqa_12545"]}, "data": str(data)}
    spec = EnvironmentSpec("SearchQA-v0", "rllm_gym:rllm_gym/SearchQA-v0", splits)
    assert list_item_ids(spec, "train") == ["searchqa_51716"]


def test_textcrafts_lists_are_read_by_name_and_refused_with_numbers_alone(tmp_path):
    said = "Crafting commands:\ncraft 1 stick using 2 planks\n\nGoal: craft birch planks."
    rows = [
        {"item_id": "minecraft:beacon"},
        {"item_id": "beacon"},
        {"item_id": "textcraft_17", "goal": "oak wood"},
        # AgentGym's number 400, on the disk that the conversation was made on.
        {
            "item_id": "textcraft_400",
            "conversations": [{"from": "human", "value": "Rules."}, {"from": "human", "value": said}],
        },
    ]
    file = tmp_path / "test.json"
    file.write_text(json.dumps(rows))
    result = CliRunner().invoke(app, ["panel", "TextCraft-v0", "--horizon", "6", "--from", str(file)])
    goals = load_book().goals
    named = [goals[int(item_id.removeprefix("textcraft_"))] for item_id in json.loads(result.stdout)["item_ids"]]
    assert named == ["minecraft:beacon", "minecraft:beacon", "minecraft:oak_wood", "minecraft:birch_planks"]
    assert TextCraftEnv(item_ids=file).item_ids == json.loads(result.stdout)["item_ids"]
    textcraft = EnvironmentSpec("TextCraft-v0", TEXTCRAFT)
    for item_ids, message in [
        (["minecraft:beacon", "textcraft_17"], r"a number alone names none; got 'textcraft_17' in entry .*:2\. Give"),
        (["minecraft:mud"], r"items must name goals of textcraft; got 'minecraft:mud' in entry .*:1\."),
        (["babyai_3"], r"items must name goals of textcraft; got 'babyai_3'"),
        ([], "must hold tasks; got none"),
    ]:
        with pytest.raises(ConfigError, match=message):
            read_test_list(write_list(file, *item_ids), textcraft)


class Guess(TextEnv):
    name, num_items, category = "guess", 3, "all"

    def split_indices(self, split):
        return range(3)

    def reset_item(self, index):
        return "Guess."

    def act(self, action):
        return StepResult("No.", 0.0, False, is_invalid=False)


def test_lists_of_other_items_under_the_same_numbers_are_refused(tmp_path):
    file = write_list(tmp_path / "test.json", "guess_1")
    with pytest.raises(ConfigError, match=r"AgentGym-RL's items are those of textcraft, .*Guess has others"):
        read_test_list(file, EnvironmentSpec("Guess", lambda config: Guess(**config)))
    pytest.importorskip("bm25s")
    file = write_list(tmp_path / "test.json", "searchqa_1")
    with pytest.raises(ConfigError, match=r"has AgentGym-RL's items only with data \(the questions"):
        read_test_list(file, EnvironmentSpec("SearchQA-v0", "rllm_gym:rllm_gym/SearchQA-v0"))


def test_the_tasks_of_a_panel_that_a_run_has_trained_on_are_told():
    spec = EnvironmentSpec("TextCraft-v0", TEXTCRAFT)
    trained, held_out = list_item_ids(spec, "train")[:5], list_item_ids(spec, "eval")[:5]
    assert tasks_trained_on([spec], panel(4).spec, [*held_out, *trained, "x"]) == list(trained)
    assert tasks_trained_on([EnvironmentSpec("BabyAI-v0", "rllm_gym:rllm_gym/BabyAI-v0")], spec, trained) == []


def test_arguments_and_date_of_the_template_are_part_of_the_hash_where_they_are_set(tmp_path):
    plain, thinking = panel(), panel(template={"chat_template_kwargs": {"think": True}, "history": "auto"})
    dated = panel(template={"chat_template_kwargs": {}, "template_date": "2026-02-03"})
    assert panel(template={"chat_template_kwargs": {}, "template_date": None}).hash == plain.hash
    assert len({plain.hash, thinking.hash, dated.hash}) == 3
    for made in (thinking, dated):
        (tmp_path / "panel.json").write_text(made.to_json())
        assert read_panel(tmp_path / "panel.json") == made
    options = ["--horizon", "4", "--episodes", "2", "--chat-template-kwargs", '{"think": true}']
    written = json.loads(CliRunner().invoke(app, ["panel", "TextCraft-v0", *options]).stdout)
    assert written["chat_template_kwargs"] == {"think": True} and "template_date" not in written


def test_a_panels_template_arguments_reach_the_policy():
    from types import SimpleNamespace

    from rllm_gym.evaluation.run import _play_on

    config = SimpleNamespace(max_model_len=512, chat_template_kwargs={}, template_date=None, evaluation_config=None)
    _play_on(config, [panel(template={"chat_template_kwargs": {"think": True}, "template_date": "2026-02-03"})])
    assert (config.chat_template_kwargs, config.template_date) == ({"think": True}, "2026-02-03")
    with pytest.raises(ConfigError, match="one by one"):
        _play_on(config, [panel(), panel(seed=4, template={"template_date": "2026-02-03"})])
