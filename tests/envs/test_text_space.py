"""UnicodeText: what it contains, draws and compares."""

import pickle

import gymnasium
import pytest

from rllm_gym.envs.text_space import UnicodeText


@pytest.mark.parametrize(
    ("x", "is_in"),
    [("ab", True), ("\u6728\n\ud800", True), ("a", False), ("abcd", False), (b"ab", False), (["a", "b"], False)],
)
def test_it_contains_any_string_of_the_right_length_and_nothing_else(x, is_in):
    assert (x in UnicodeText(3, min_length=2)) is is_in


def test_samples_repeat_by_seed_are_in_the_space_and_reach_its_bounds():
    space, other = UnicodeText(5, min_length=2, seed=1), UnicodeText(5, min_length=2, seed=1)
    samples = [space.sample() for _ in range(100)]
    assert samples == [other.sample() for _ in range(100)]
    assert all(sample in space for sample in samples)
    assert {len(sample) for sample in samples} == {2, 3, 4, 5}
    assert max(len(UnicodeText(10**9).sample()) for _ in range(100)) <= 64


def test_it_is_equal_by_its_bounds_and_only_to_its_kind():
    assert UnicodeText(5) == UnicodeText(5)
    assert UnicodeText(5) != UnicodeText(6)
    assert UnicodeText(5) != UnicodeText(5, min_length=1)
    assert UnicodeText(5) != gymnasium.spaces.Text(5, min_length=0, charset=UnicodeText(5).characters)


def test_a_pickled_space_goes_on_drawing_alike():
    space = UnicodeText(50, seed=3)
    space.sample()
    copy = pickle.loads(pickle.dumps(space))
    assert copy == space
    assert [copy.sample() for _ in range(5)] == [space.sample() for _ in range(5)]
