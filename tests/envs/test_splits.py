"""Splits that the user names: what they hold, and that none but `train` holds what is trained on."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest

import rllm_gym  # noqa: F401  (registers the environments)
from rllm_gym.envs.textcraft.env import TextCraftEnv
from rllm_gym.errors import ConfigError
from rllm_gym.registration import TEXT_AND_TOKEN_FACTORY

# They need a server, or a program; the contract tests play them, or test_program.py.
REMOTE = ("rllm_gym/AgentGym-v0", "rllm_gym/OpenEnv-v0", "rllm_gym/Program-v0")
IDS = sorted(
    key
    for key, spec in gymnasium.registry.items()
    if key.startswith("rllm_gym/") and key not in REMOTE and spec.entry_point == TEXT_AND_TOKEN_FACTORY
)
# Items 2 and 6 of TextCraft are of the environment's own `eval`, 3, 4 and 17 of its `train`.
SPLITS = {"train": [3, "textcraft_17", np.int64(4)], "eval": ["textcraft_6"], "hard": [2, "textcraft_2"]}


@pytest.mark.parametrize(
    ("split", "items"),
    [
        (None, ["textcraft_3", "textcraft_17", "textcraft_4"]),
        ("train", ["textcraft_3", "textcraft_17", "textcraft_4"]),
        ("eval", ["textcraft_6"]),
        ("hard", ["textcraft_2"]),
    ],
)
@pytest.mark.parametrize("obs_type", ["text", "token"])
def test_gymnasium_make_draws_from_a_split_of_the_users(split, items, obs_type):
    env = gymnasium.make("rllm_gym/TextCraft-v0", obs_type=obs_type, split=split, splits=SPLITS)
    assert env.unwrapped.item_ids == items
    assert env.reset(seed=0)[1]["item_id"] in items


def test_what_splits_leave_out_is_the_environments_own():
    assert TextCraftEnv(splits={"hard": [2]}).item_ids == TextCraftEnv().item_ids
    assert TextCraftEnv(splits={"train": [0], "hard": [2]}, split="all").item_ids == TextCraftEnv(split="all").item_ids


def test_a_split_may_be_a_file_or_one_of_the_environments_own(tmp_path):
    (tmp_path / "train.json").write_text('[{"item_id": "textcraft_17"}, 3]')
    (tmp_path / "hard.jsonl").write_text('{"item_id": "textcraft_2"}\n6\n')
    splits = {"train": str(tmp_path / "train.json"), "hard": tmp_path / "hard.jsonl"}
    assert TextCraftEnv(splits=splits).item_ids == ["textcraft_17", "textcraft_3"]
    assert TextCraftEnv(splits=splits, split="hard").item_ids == ["textcraft_2", "textcraft_6"]
    turned = {"train": "eval", "eval": "train"}
    assert TextCraftEnv(splits=turned).item_ids == TextCraftEnv(split="eval").item_ids
    assert TextCraftEnv(splits=turned, split="eval").item_ids == TextCraftEnv(split="train").item_ids


def test_other_filters_hold_in_a_split_of_the_users_too():
    # Of depth 1 are 2 and 6, of depth 2 is 126.
    assert TextCraftEnv(depth=1, splits={"hard": [2, 126, 6]}, split="hard").item_ids == ["textcraft_2", "textcraft_6"]


@pytest.mark.parametrize("env_id", IDS)
def test_a_number_and_a_name_are_the_same_item_in_every_environment(env_id, request):
    if env_id == "rllm_gym/ALFWorld-v0":
        request.getfixturevalue("alfworld_data")
    everything = gymnasium.make(env_id, obs_type="text", split="all").unwrapped
    index = everything._selection[-1]
    splits = {"train": [index], "eval": [everything.item_ids[-1]]}
    with pytest.raises(ConfigError, match=rf"got '{everything.item_ids[-1]}' both in train and in eval\."):
        gymnasium.make(env_id, obs_type="text", splits=splits)
    env = gymnasium.make(env_id, obs_type="text", splits={"train": [index]})
    assert env.unwrapped.item_ids == [everything.item_ids[-1]]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"splits": {"train": [17, 3], "eval": ["textcraft_17", 2, 3]}},
         "splits must keep what is trained on apart; got 'textcraft_17', the first of 2 items, both in train and in "
         "eval. Say in splits what train and eval hold."),
        ({"splits": {"hard": [3]}}, "got 'textcraft_3' both in train and in hard."),
        ({"splits": {"train": [3, 4, 6, 17]}, "split": "eval"}, "got 'textcraft_6' both in train and in eval."),
        ({"splits": {"train": "all"}, "split": "eval"}, "'textcraft_2', the first of 100 items, both in train and in"),
        ({"splits": {"eval": []}}, "a split must hold some item; got none for 'eval' in splits"),
        ({"splits": {"hard": [126]}, "depth": 1}, "a split must hold some item; got none for 'hard' in splits"),
        ({"splits": {"eval": "evl"}}, "got 'evl' for 'eval' in splits. Did you mean 'eval'?"),
        ({"splits": {"eval": "none.json"}}, "splits: eval must be a list of ids, or a JSON or JSON Lines file"),
        ({"splits": {"eval": 6}}, "splits: eval must be a list of ids, or a JSON or JSON Lines file that holds some; "
         "got 6 (int)."),
        ({"splits": {"eval": ["textcarft_6"]}}, "got 'textcarft_6'. Did you mean 'textcraft_6'?"),
        ({"splits": {"eval": [999]}}, "got 999. Did you mean 'textcraft_543'?"),
        ({"splits": {"hard": [2]}, "split": "hrad"},
         "split must be one of train, eval, all, hard; got 'hrad'. Did you mean 'hard'?"),
        ({"splits": {"all": [2]}}, "the name of a split must be a text without a slash"),
        ({"splits": {"a/b": [2]}}, "the name of a split must be a text without a slash"),
        ({"splits": {3: [2]}}, "the name of a split must be a text without a slash"),
        ({"splits": [3]}, "splits must map names to lists, files or splits; got [3]."),
        ({"splits": {}}, "splits must map names to lists, files or splits; got {}."),
        ({"splits": {"train": [3]}, "item_ids": [4]}, "item_ids and splits exclude each other; got both."),
    ],
)  # fmt: skip
def test_splits_that_cannot_be_are_refused_in_one_line(options, message):
    with pytest.raises(ConfigError) as error:
        TextCraftEnv(**options)
    assert message in str(error.value)
    assert "\n" not in str(error.value)
