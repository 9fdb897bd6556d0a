"""`opponents` is read, and a pool chooses the snapshot that plays next."""

from __future__ import annotations

import re

import numpy as np
import pytest

from rllm_gym.callbacks.opponent_pool import NUM_RECENT, Opponent, Pool, Snapshot, parse_opponents
from rllm_gym.errors import ConfigError
from rllm_gym.rollout.opponents import MovePlayer, WithMoves, check_agents
from rllm_gym.tokens import ChatTokenizer
from rllm_gym.types import CompletionRequest, SamplingParams
from tests.envs.toy_multi_agent import PassTheWord, TakeAway


def test_every_kind_is_read():
    written = {"a": "self", "b": "random", "c": "expert", "d": {"frozen": "runs/x"}, "e": {"pool": {"every": 3}}}
    assert parse_opponents(written) == {
        "a": Opponent("self"),
        "b": Opponent("random"),
        "c": Opponent("expert"),
        "d": Opponent("frozen", source="runs/x"),
        "e": Opponent("pool", every=3, size=5, sampling="uniform"),
    }
    assert parse_opponents(None) == {}


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("randon", "got 'randon'. Did you mean 'random'?"),
        (7, "must be self, random, expert, {frozen: CHECKPOINT}"),
        ({"frozen": 3}, "must be written as {frozen: CHECKPOINT}; got {'frozen': 3}"),
        ("frozen", "must be written as {frozen: CHECKPOINT}; got 'frozen'"),
        ({"random": {}}, "must be written as random; got {'random': {}}"),
        ({"pool": {"evry": 3}}, "unknown key 'evry'; known are every, size and sampling"),
        ({"pool": {"every": 0}}, "every must be a whole number of at least 1; got 0"),
        ({"pool": {"size": True}}, "size must be a whole number of at least 1; got True"),
        ({"pool": {"sampling": "hard"}}, "sampling must be one of uniform, latest, hardest; got 'hard'"),
    ],
)
def test_anything_else_is_refused_in_one_line(spec, message):
    with pytest.raises(ConfigError, match=re.escape(message)) as caught:
        parse_opponents({"player_1": spec})
    assert str(caught.value).startswith("opponents: player_1:")
    assert "\n" not in str(caught.value)


def snapshots(*returns):
    return [Snapshot(step, step, {}, list(each)) for step, each in enumerate(returns)]


def test_a_pool_keeps_the_newest_and_plays_the_latest():
    pool = Pool()
    for snapshot in snapshots([], [], [], []):
        pool.add(snapshot, size=3)
    assert [snapshot.step for snapshot in pool.snapshots] == [1, 2, 3]
    pool.playing = 0
    pool.draw("latest", np.random.default_rng(0))
    assert pool.opponent.step == 3


def test_the_hardest_is_whom_the_learner_has_recently_earned_least_against():
    pool = Pool(snapshots([0.5, 0.5], [-0.5, 0.1], [0.9]))
    pool.draw("hardest", np.random.default_rng(0))
    assert pool.opponent.step == 1  # means .5, -.2, .9
    pool.add(Snapshot(9, 9, {}), size=9)
    pool.draw("hardest", np.random.default_rng(0))
    assert pool.opponent.step == 9  # it has not played yet
    for value in (-9.0, *[1.0] * NUM_RECENT):
        pool.opponent.observe(value)
    pool.draw("hardest", np.random.default_rng(0))
    assert pool.opponent.step == 1  # what was long ago is forgotten


def test_a_uniform_pool_plays_all_and_repeats_by_the_seed():
    pool, drawn = Pool(snapshots([], [], [])), []
    for step in range(60):
        pool.draw("uniform", np.random.default_rng((0, step)))
        drawn.append(pool.playing)
    assert {drawn.count(k) // 10 for k in range(3)} <= {1, 2, 3}
    pool.draw("uniform", np.random.default_rng((0, 7)))
    assert pool.playing == drawn[7]


def test_a_pools_copy_is_left_alone_by_what_comes():
    pool = Pool(snapshots([0.5], []))
    copy = pool.copy()
    pool.opponent.observe(1.0)
    pool.add(Snapshot(9, 9, {}), size=5)
    assert ([s.returns for s in copy.snapshots], copy.playing) == ([[0.5], []], 0)


def test_scripted_players_are_told_what_they_may_do_while_they_are_to_act():
    env = WithMoves(TakeAway(), {"player_1": "random"})
    observations, infos = env.reset(seed=0, options={"item_id": 3})
    assert (list(observations), "rllm_gym/moves" in infos["player_0"]) == (["player_0"], False)
    *_, infos = env.step({"player_0": "1"})
    assert infos["player_1"]["rllm_gym/moves"] == ("1", "2")
    *_, infos = env.step({"player_1": "1"})
    assert infos["player_0"]["legal_actions"] == ["1"]
    *_, terminateds, _, infos = env.step({"player_0": "1"})
    assert terminateds["__all__"]
    assert not any("rllm_gym/moves" in info for info in infos.values())


def test_an_expert_says_one_thing_and_an_environment_without_one_is_refused():
    env = WithMoves(TakeAway(), {"player_0": "expert"})
    assert env.reset(options={"item_id": 5})[1]["player_0"]["rllm_gym/moves"] == ("2",)  # leaves three
    with pytest.raises(ConfigError, match="PassTheWord has none"):
        WithMoves(PassTheWord(), {"bob": "expert"})
    with pytest.raises(ConfigError, match="of which PassTheWord gives none"):
        WithMoves(PassTheWord(), {"alice": "random"}).reset()


def test_opponents_are_agents_of_the_environment_and_leave_one_to_the_learner():
    check_agents(parse_opponents({"player_0": "self", "player_1": "random"}), TakeAway())
    with pytest.raises(ConfigError, match=r"got 'player_2'\. Did you mean 'player_"):
        check_agents(parse_opponents({"player_2": "random"}), TakeAway())
    with pytest.raises(ConfigError, match="one agent of TakeAway must be left to the learner"):
        check_agents(parse_opponents({"player_0": "random", "player_1": "expert"}), TakeAway())
    with pytest.raises(ConfigError, match=r"object has only one, got 'player_1'\. Leave opponents out\."):
        check_agents(parse_opponents({"player_1": "random"}), object())


def test_a_player_of_moves_takes_each_by_the_requests_seed(tiny_model):
    chat = ChatTokenizer(str(tiny_model))
    player = MovePlayer(chat, max_context_tokens=64)
    for seed in range(40):
        player.submit(CompletionRequest(str(seed), [1], (), SamplingParams(8), seed, moves=("1", "2")))
    player.abort("7")
    said = {completion.request_id: completion.token_ids.tolist() for completion in player.step()}
    assert "7" not in said
    assert player.step() == []
    counts = [list(said.values()).count(chat.encode_action(move)) for move in ("1", "2")]
    assert sum(counts) == 39
    assert min(counts) > 8
