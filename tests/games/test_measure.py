"""What a policy is asked is what it would read in a game, and both ways of measuring it agree."""

import numpy as np
import pytest

from rllm_gym.envs.poker.rules import KUHN
from rllm_gym.games import token_chances
from rllm_gym.games.measure import completed_by, measure
from rllm_gym.games.nash import information_states
from rllm_gym.games.questions import MoveChances, game_of, make_questions
from rllm_gym.tokens import ChatTokenizer
from rllm_gym.types import SamplingParams
from tests.needs import skip_without
from tests.wiring.harness import run

skip = pytest.fixture(autouse=True)(lambda: skip_without("open_spiel"))
PARAMS = SamplingParams(8)


def of(chances, monkeypatch, game="kuhn_poker"):
    """Return the measure of a policy with the chances of each information state."""
    by_state = iter(chances)
    monkeypatch.setattr(token_chances.MoveSum, "__call__", lambda self, policy, prompt_ids: next(by_state))
    monkeypatch.setattr(token_chances, "LanguageModelTokens", lambda *args: None)
    return measure(game, env_config={}, chat=ChatTokenizer(), params=PARAMS, token_options={}, lm=object())


def test_moves_are_renormalised_and_uniform_where_there_is_none(monkeypatch):
    some = MoveChances(np.array([0.1, 0.1]), 0.8)
    none = MoveChances(np.array([0.0, 0.0]), 1.0)
    result = of([some] * 6 + [none] * 6, monkeypatch)
    assert result == {
        "nash_conv": pytest.approx(11 / 12),
        "exploitability": pytest.approx(11 / 24),
        "illegal_probability": pytest.approx(0.9),
        "method": "exact",
        "num_information_sets": 12,
    }


def test_a_move_that_is_not_legal_here_is_illegal(monkeypatch):
    everywhere = MoveChances(np.array([0.5, 0.25, 0.25]), 0.0)
    result = of([everywhere] * 936, monkeypatch, "leduc_poker")
    legal = [sum(everywhere.moves[action] for action in state.legal) for state in information_states("leduc_poker")]
    assert set(legal) == {0.5, 0.75, 1.0}  # without fold, without raise, and with both
    assert result["illegal_probability"] == pytest.approx(1 - np.mean(legal))


def test_without_a_model_and_without_completions_there_is_no_measure():
    assert measure("kuhn_poker", env_config={}, chat=ChatTokenizer(), params=PARAMS, token_options={}) is None


@pytest.mark.parametrize("thoughts", [False, True])
def test_completions_are_counted(thoughts):
    """The policy bets in every second turn, and says nonsense in every fourth."""

    def complete(questions, num_samples):
        turns = ["bet", "pass", "bet", "I do not know"]
        return [[f"Action: {turns[k % 4]}" for k in range(num_samples)] for _ in questions]

    result = measure(
        "kuhn_poker", env_config={"thoughts": thoughts}, chat=ChatTokenizer(), params=PARAMS, token_options={},
        complete=complete, num_samples=8, lm=None,
    )  # fmt: skip
    assert result["method"] == "sampled" and result["illegal_probability"] == pytest.approx(0.25)
    from rllm_gym.evaluation import nash_conv

    assert result["nash_conv"] == pytest.approx(nash_conv("kuhn_poker", lambda name: {"bet": 2 / 3, "pass": 1 / 3}))


def test_a_question_is_the_conversation_of_the_player_so_far():
    chat = ChatTokenizer()
    questions = dict(
        zip([s.name for s in information_states("kuhn_poker")], make_questions("kuhn_poker", {}, chat), strict=True)
    )
    question = questions["0pb"]  # J, passed, and the other player bets
    assert [message["content"] for message in question.messages[1:]] == [
        "You are the first player. Your card is J.\nYour move: pass or bet?",
        "pass",
        "The other player: bet.\nYour move: pass or bet?",
    ]
    assert question.prompt_ids == chat.encode_chat(question.messages, add_generation_prompt=True)
    assert all(str(KUHN.introduction) in q.messages[0]["content"] for q in questions.values())
    thinking = make_questions("kuhn_poker", {"thoughts": True}, chat)[2]
    assert [m["content"] for m in thinking.messages if m["role"] == "assistant"] in (
        [], ["Thought: I choose to pass.\nAction: pass"]
    )  # fmt: skip


@pytest.mark.parametrize(
    ("env", "game"),
    [
        ("rllm_gym/KuhnPoker-v0", "kuhn_poker"), ("rllm_gym:rllm_gym/LeducPoker-v0", "leduc_poker"),
        ("LeducPoker-v0", "leduc_poker"), ("rllm_gym/TextCraft-v0", None), (dict, None),
    ],
)  # fmt: skip
def test_which_environments_are_games_with_a_known_optimum(env, game):
    assert game_of(env) == game


@pytest.mark.usefixtures("ray_cluster")
def test_an_evaluation_in_training_reports_the_measure_of_what_its_engine_says(tiny_model):
    options = {"env": "rllm_gym/KuhnPoker-v0", "max_model_len": 1024, "evaluation_interval": 1}
    with run(tiny_model, **options, evaluation_duration=2, evaluation_game_samples=4) as found:
        evaluation = found.results[-1]["evaluation"]
        assert {"nash_conv", "exploitability", "illegal_probability", "method"} <= set(evaluation)
        assert (evaluation["method"], evaluation["illegal_probability"]) == ("sampled", 1.0)  # it says no move
        assert evaluation["nash_conv"] == pytest.approx(11 / 12)
        asked = [list(request.prompt_ids) for request in found.engine.requests]
        for question in make_questions("kuhn_poker", {}, ChatTokenizer(tiny_model)):
            assert asked.count(question.prompt_ids) >= 4
        complete = completed_by(found.algo, "default_policy", PARAMS)
        texts = complete(make_questions("kuhn_poker", {}, found.runner.chat)[:2], 3)
        assert [len(of_question) for of_question in texts] == [3, 3]


@pytest.mark.usefixtures("ray_cluster")
def test_another_environment_is_not_measured(tiny_model):
    with run(tiny_model, evaluation_interval=1, evaluation_duration=2) as found:
        assert "nash_conv" not in found.results[-1]["evaluation"] and "games" not in found.results[-1]["evaluation"]
