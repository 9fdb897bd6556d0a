"""NashConv against published values, and what a caller may have written wrongly."""

import subprocess
import sys

import pytest

from rllm_gym.errors import ConfigError
from rllm_gym.evaluation import nash_conv
from rllm_gym.games.nash import information_states
from tests.needs import skip_without

skip = pytest.fixture(autouse=True)(lambda: skip_without("open_spiel"))


def uniform(game):
    legal = {state.name: state.legal for state in information_states(game)}
    return lambda name: dict.fromkeys(legal[name], 1 / len(legal[name]))


@pytest.mark.promise
@pytest.mark.parametrize(
    ("game", "policy", "expected"),
    [
        ("kuhn_poker", uniform, 11 / 12),
        ("kuhn_poker", lambda game: lambda name: {"pass": 1.0}, 2.0),
        ("kuhn_poker", lambda game: lambda name: {0: 0.0, 1: 1.0}, 2 / 3),
        ("leduc_poker", uniform, 4.747222222222222),
    ],
)
def test_nash_conv_of_known_policies(game, policy, expected):
    assert nash_conv(game, policy(game)) == pytest.approx(expected, abs=1e-6)


def test_nash_conv_of_kuhns_known_optimum_is_zero():
    """The equilibrium of Kuhn 1950 with alpha = 0.2: of the first player J bets with it, K with three times it."""
    alpha = 0.2
    bets = {"0": alpha, "1": 0, "2": 3 * alpha, "0pb": 0, "1pb": alpha + 1 / 3, "2pb": 1}
    bets |= {"0p": 1 / 3, "1p": 0, "2p": 1, "0b": 0, "1b": 1 / 3, "2b": 1}
    found = nash_conv("kuhn_poker", lambda name: {"bet": bets[name], "pass": 1 - bets[name]})
    assert found == pytest.approx(0, abs=1e-9)


def test_every_information_set_is_asked_once():
    asked = []

    def policy(name):
        asked.append(name)
        return {"pass": 0.5, "bet": 0.5}

    nash_conv("kuhn_poker", policy)
    assert sorted(asked) == sorted(set(asked)) and len(asked) == 12
    assert len(information_states("leduc_poker")) == 936


@pytest.mark.parametrize(
    ("game", "given", "message"),
    [
        ("kuhn", {}, "Did you mean 'kuhn_poker'"),
        ("kuhn_poker", {"pass": 0.5}, "must sum to 1; got 0.500000"),
        ("kuhn_poker", {"pass": 0.5, "raise": 0.5}, "to pass (0), bet (1) alone; got 'raise': 0.5"),
        ("kuhn_poker", {"pass": 1.5, "bet": -0.5}, "alone; got 'pass': 1.5"),
        ("kuhn_poker", {"pass": float("nan")}, "got 'pass': nan"),
        ("kuhn_poker", [0.5, 0.5], "must be a mapping"),
    ],
)
def test_wrong_probabilities_are_named_in_one_line(game, given, message):
    with pytest.raises(ConfigError) as error:
        nash_conv(game, lambda name: given)
    assert message in str(error.value) and "\n" not in str(error.value)


def test_nash_conv_needs_no_trainer():
    program = (
        "import sys\n"
        "from rllm_gym.evaluation import nash_conv\n"
        "print(round(nash_conv('kuhn_poker', lambda state: {'pass': 1.0}), 6))\n"
        "print([name for name in ('torch', 'ray', 'transformers', 'vllm') if name in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split("\n")[:2] == ["2.0", "[]"]
