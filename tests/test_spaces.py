import json
import multiprocessing
import pickle

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import utils

from rllm_gym.spaces import TokenSequence


class Echo(gymnasium.Env):
    """Says its seed at reset, then what it heard, `repeats` times over."""

    def __init__(self, repeats=1, max_length=9):
        self.observation_space = TokenSequence(100, max_length)
        self.action_space = TokenSequence(100, 9)
        self.repeats = repeats

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.full(2, seed, np.int64), {}

    def step(self, action):
        return np.tile(np.asarray(action, np.int64), self.repeats), 0.0, False, False, {}


def as_lists(batch):
    return [part.tolist() for part in batch]


@pytest.mark.parametrize(
    "x",
    [
        np.array([0, 4, 2]),
        np.array([3], np.uint8),
        np.array([], np.int64),
        [0, 4],
        (1, 2, 3),
        [],
        [np.int32(2), 1],
    ],
)
def test_sequences_of_known_ids_are_contained(x):
    assert x in TokenSequence(5, 3)


@pytest.mark.parametrize(
    "x",
    [
        np.array([5]),
        np.array([-1]),
        [0, 5],
        (-1,),
        [2**70],
        np.zeros(4, np.int64),
        [0, 0, 0, 0],
        np.zeros((1, 2), np.int64),
        [[0]],
        np.int64(1),
        1,
        np.array([1.0]),
        [1.0],
        np.array([True]),
        [True],
        [np.True_],
        np.array([1], object),
        "12",
        b"12",
        None,
    ],
)
def test_anything_else_is_not_contained(x):
    assert x not in TokenSequence(5, 3)


@pytest.mark.parametrize("arguments", [(0, 3), (5, 0), (5.0, 3), (True, 3), (5, "3")])
def test_sizes_must_be_positive_integers(arguments):
    with pytest.raises(ValueError, match=r"TokenSequence: .* must be a positive integer; got"):
        TokenSequence(*arguments)


def test_samples_are_contained_and_reach_every_length_and_id():
    space = TokenSequence(3, 4, seed=0)
    samples = [space.sample() for _ in range(500)]
    assert all(sample in space and sample.dtype == np.int64 for sample in samples)
    assert {len(sample) for sample in samples} == {0, 1, 2, 3, 4}
    assert {int(i) for sample in samples for i in sample} == {0, 1, 2}


def test_equal_seeds_give_equal_samples_and_other_seeds_others():
    first, second, third = (TokenSequence(1000, 50, seed=seed) for seed in (1, 1, 2))
    draws = [as_lists(space.sample() for _ in range(20)) for space in (first, second, third)]
    assert draws[0] == draws[1] != draws[2]
    first.seed(2)
    assert as_lists(first.sample() for _ in range(20)) == draws[2]


def test_a_mask_and_a_probability_restrict_the_ids():
    space = TokenSequence(3, 50, seed=0)
    assert {int(i) for _ in range(30) for i in space.sample(mask=np.array([1, 0, 1], np.int8))} == {0, 2}
    assert {int(i) for _ in range(30) for i in space.sample(probability=np.array([0.0, 1.0, 0.0]))} == {1}
    with pytest.raises(ValueError, match="exclude each other"):
        space.sample(mask=np.ones(3, np.int8), probability=np.ones(3) / 3)
    with pytest.raises(ValueError, match="mask must have shape"):
        space.sample(mask=np.zeros(3, np.int8))


def test_pickled_and_copied_spaces_are_equal_and_continue_the_same_samples():
    space = TokenSequence(1000, 50, seed=3)
    space.sample()
    twin = pickle.loads(pickle.dumps(space))
    assert twin == space and hash(twin) == hash(space)
    assert as_lists(twin.sample() for _ in range(5)) == as_lists(space.sample() for _ in range(5))


def test_spaces_differ_by_vocabulary_and_by_length():
    assert TokenSequence(5, 3) == TokenSequence(5, 3, seed=1)
    assert TokenSequence(5, 3) != TokenSequence(6, 3)
    assert TokenSequence(5, 3) != TokenSequence(5, 4)
    assert TokenSequence(5, 3) != gymnasium.spaces.MultiDiscrete([5, 5, 5])
    assert repr(TokenSequence(5, 3)) == "TokenSequence(5, 3)"


def test_json_round_trip_keeps_values_and_dtype():
    space = TokenSequence(5, 3)
    batch = [np.array([0, 4], np.int64), np.array([], np.int64)]
    text = json.dumps(space.to_jsonable(batch))
    assert text == "[[0, 4], []]"
    back = space.from_jsonable(json.loads(text))
    assert as_lists(back) == as_lists(batch) and all(part.dtype == np.int64 for part in back)


def test_the_space_is_not_flattenable():
    assert TokenSequence(5, 3).is_np_flattenable is False


def test_a_batch_is_a_tuple_of_sequences():
    space = TokenSequence(5, 3, seed=0)
    batched = utils.batch_space(space, 3)
    assert batched == gymnasium.spaces.Tuple([TokenSequence(5, 3)] * 3)
    empty = utils.create_empty_array(space, 3)
    assert as_lists(empty) == [[], [], []] and empty in batched
    items = (np.array([1]), np.array([2, 3, 4]), np.array([0, 0]))
    assert as_lists(utils.concatenate(space, items, empty)) == [[1], [2, 3, 4], [0, 0]]
    # One sequence per environment, not one token of each.
    assert as_lists(utils.iterate(batched, items)) == [[1], [2, 3, 4], [0, 0]]
    different = utils.batch_differing_spaces([TokenSequence(5, 3), TokenSequence(6, 4)])
    assert different == gymnasium.spaces.Tuple([TokenSequence(5, 3), TokenSequence(6, 4)])


def test_shared_memory_is_read_when_looked_at_and_copies_do_not_change():
    space = TokenSequence(100, 4)
    memory = utils.create_shared_memory(space, 2, multiprocessing)
    batch = utils.read_from_shared_memory(space, memory, 2)
    assert as_lists(batch) == [[], []] and len(batch) == 2 and batch in utils.batch_space(space, 2)
    utils.write_to_shared_memory(space, 1, np.array([7, 8, 9, 10]), memory)
    first = batch[1]
    copied = pickle.loads(pickle.dumps(tuple(batch)))
    utils.write_to_shared_memory(space, 1, np.array([1]), memory)  # shorter: the old tail must not show
    assert as_lists(batch) == [[], [1]]
    assert first.tolist() == [7, 8, 9, 10] and as_lists(copied) == [[], [7, 8, 9, 10]]
    with pytest.raises(ValueError, match="shared memory of 4 tokens; got 5"):
        utils.write_to_shared_memory(space, 0, np.zeros(5, np.int64), memory)


@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize("copy", [True, False])
def test_vector_environments_give_each_environment_its_own_sequence(mode, copy):
    vector_class = {"sync": gymnasium.vector.SyncVectorEnv, "async": gymnasium.vector.AsyncVectorEnv}[mode]
    envs = vector_class([Echo, Echo, Echo], copy=copy)
    try:
        start, _ = envs.reset(seed=10)
        assert as_lists(start) == [[10, 10], [11, 11], [12, 12]]
        long, *_ = envs.step(([1, 2, 3, 4], [5], np.array([], np.int64)))
        assert as_lists(long) == [[1, 2, 3, 4], [5], []] and long in envs.observation_space
        short, *_ = envs.step((np.array([9]), [8, 8], [7]))
        assert as_lists(short) == [[9], [8, 8], [7]]
        if copy:
            assert as_lists(long) == [[1, 2, 3, 4], [5], []] and as_lists(start) == [[10, 10], [11, 11], [12, 12]]
            assert type(short) is tuple
    finally:
        envs.close()


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_environments_of_different_length_can_be_batched_as_different(mode):
    vector_class = {"sync": gymnasium.vector.SyncVectorEnv, "async": gymnasium.vector.AsyncVectorEnv}[mode]
    envs = vector_class([lambda: Echo(2, 9), lambda: Echo(1, 3)], observation_mode="different")
    try:
        envs.reset(seed=0)
        observation, *_ = envs.step(([1, 2, 3], [4, 5, 6]))
        assert as_lists(observation) == [[1, 2, 3, 1, 2, 3], [4, 5, 6]]
    finally:
        envs.close()
