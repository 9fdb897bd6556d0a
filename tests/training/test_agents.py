"""What was sampled is what is trained, whatever an agent plans, forgets or tries again: a train step, replayed."""

from __future__ import annotations

import numpy as np
import pytest

from rllm_gym.data import SCHEMA_VERSION, read_episodes
from rllm_gym.errors import TrajectoryError
from rllm_gym.tokens import ChatTokenizer
from rllm_gym.training.recorded_samples import SampleMaker
from tests.wiring.harness import run

pytestmark = pytest.mark.usefixtures("ray_cluster")
AGENTS = {
    "full": {"plan": True, "reflect": {"every": 2}},
    "last_n_turns": {"context": {"last_n_turns": 1}, "plan": True},
    "summarize_observations": {"context": {"summarize_observations": 2}, "reflect": "on_error"},
    "attempts": {"context": {"last_n_turns": 2}, "attempts": 3, "attempt_turns": 2, "format": "react"},
    "function_call": {"format": "function_call", "reflect": "on_error", "context": {"last_n_turns": 2}},
}
OPTIONS = {"max_episode_steps": 8, "max_model_len": 2048}


def of_env(agent, **env_config):
    return {"env_config": {"agent": agent, **env_config}}


def parts_of(samples):
    """Return {episode: its samples in order}."""
    found = {}
    for sample in samples:
        found.setdefault(sample.episode, []).append(sample)
    return {episode: sorted(parts, key=lambda part: part.context_index) for episode, parts in found.items()}


@pytest.mark.promise
@pytest.mark.parametrize("name", AGENTS)
def test_every_request_of_the_engine_is_the_beginning_of_one_sample_and_its_reply_is_all_that_is_trained(
    tiny_model, name
):
    with run(tiny_model, **of_env(AGENTS[name]), **OPTIONS) as found:
        asked = [list(request.prompt_ids) for request in found.engine.requests]
        chat = ChatTokenizer(tiny_model)  # an engine that speaks text is asked the same
        assert asked == [chat.encode_chat(r.messages, add_generation_prompt=True) for r in found.engine.requests]
        replayed, num_rewritten = [], 0
        for parts in parts_of(found.samples).values():
            num_rewritten += len(parts) - 1
            assert [part.context_index for part in parts] == list(range(len(parts)))
            for part in parts:
                # Prompt tokens have no weight, and every run of weighted tokens is what followed one request.
                is_sampled = part.weight != 0
                edges = np.flatnonzero(np.diff(is_sampled.astype(int), prepend=0))
                begins = edges[is_sampled[edges]]
                assert len(begins) == part.is_turn_end.sum()
                replayed += [part.tokens[:begin].tolist() for begin in begins]
                assert (part.policy_version[is_sampled] >= 0).all() and (part.policy_version[~is_sampled] == -1).all()
        assert sorted(replayed) == sorted(asked)
        assert (num_rewritten > 0) == (name != "full")
        # One advantage for all samples of an episode, and groups whose advantages are balanced.
        for parts in parts_of(found.samples).values():
            advantages = {float(a) for part in parts for a in part.advantage[part.weight != 0]}
            assert len(advantages) == 1
        played = found.algo.sampled.played
        assert {len(turns) <= 8 for episode in played for turns in [episode.streams["agent"].turns]} == {True}
        assert found.env_metrics["num_samples_mean"] == len(found.samples) / len(played)


@pytest.mark.parametrize("name", ["last_n_turns", "attempts"])
def test_the_loss_counts_every_sampled_token_once(tiny_model, name):
    with run(tiny_model, **of_env(AGENTS[name]), **OPTIONS) as found:
        trained = sum(int((sample.weight != 0).sum()) for sample in found.trained)
        episodes = {sample.episode for sample in found.trained}
        turns = [t for e in found.algo.sampled.played if e.episode_id in episodes for t in e.streams["agent"].turns]
        assert trained == sum(len(turn.action_ids) for turn in turns) > 0
        assert found.metrics["num_sampled_tokens_trained"] == trained
        assert sum(int(batch["mask"].sum()) for batch in found.batches) == trained


def test_micro_batches_of_rewritten_contexts_add_up_to_the_whole(tiny_model):
    losses = []
    for tokens in (100, 100_000):
        options = {**OPTIONS, "tokens_per_micro_batch": tokens}
        with run(tiny_model, **of_env(AGENTS["last_n_turns"]), **options) as found:
            losses.append((len(found.batches), sum(found.losses), found.metrics["gradient_norm"]))
    assert losses[0][0] > losses[1][0]
    assert losses[0][1:] == pytest.approx(losses[1][1:], abs=1e-4)


@pytest.mark.parametrize("gae_per", ["token", "turn"])
def test_ppo_carries_its_values_over_the_seams(tiny_model, gae_per):
    options = {**OPTIONS, "method": "PPO", "gae_per": gae_per, "gamma": 1.0, "lambda_": 1.0, "bootstrap": "never"}
    with run(tiny_model, **of_env(AGENTS["last_n_turns"]), **options) as found:
        for parts in parts_of(found.samples).values():
            returns = sum(float(part.reward.sum()) for part in parts)
            # With gamma and lambda 1 the target of the first token is the return of the whole episode.
            first = parts[0].value_target[parts[0].weight != 0][0]
            assert first == pytest.approx(returns, abs=1e-4)


@pytest.mark.parametrize("context", ["full", {"last_n_turns": 1}])
def test_what_is_appended_to_bootstrap_from_is_what_the_environment_added(tiny_model, context):
    options = {**OPTIONS, "method": "PPO", "bootstrap": "truncated", "max_episode_steps": 3}
    with run(tiny_model, **of_env({"context": context}), **options) as found:
        truncated = {e.episode_id: e for e in found.algo.sampled.played if e.is_truncated}
        assert truncated
        for episode, parts in parts_of(found.samples).items():
            if episode in truncated:
                *_, (last,) = np.where(parts[-1].weight != 0)[0][-1:], (int(np.flatnonzero(parts[-1].weight)[-1]),)
                reply = truncated[episode].streams["agent"].final_observation_ids
                assert parts[-1].tokens[last + 1 :].tolist() == reply.tolist()
                assert 0 < len(reply) < len(parts[0].tokens)


def test_two_turns_are_one_sample_until_the_history_is_rewritten(tiny_model, tmp_path):
    options = {**OPTIONS, "save_trajectories": True, "steps": 2}
    with run(tiny_model, **of_env(AGENTS["attempts"]), **options) as found:
        path = found.algo.trajectories_path
        records = {record.episode_id: record for record in read_episodes(path)}
        chat, played = ChatTokenizer(str(tiny_model)), found.algo.sampled.played
        samples = parts_of(found.samples)
    assert {record.schema_version for record in records.values()} == {SCHEMA_VERSION}
    kinds = {turn.kind for record in records.values() for turn in record.turns}
    assert kinds == {"action", "reflection"}
    for episode in played:
        record, stream = records[episode.episode_id], episode.streams["agent"]
        assert [turn.attempt for turn in record.turns] == sorted(turn.attempt for turn in stream.turns)
        assert [(turn.context_index, turn.kind) for turn in record.turns] == [
            (turn.context_index, turn.kind) for turn in stream.turns
        ]
        said = [message["content"] for message in record.messages if message["role"] == "assistant"]
        assert len(said) == len(record.turns)  # messages are the whole conversation
        # Read back, a record gives the samples that were trained, and their advantages stand at its turns.
        parts = samples[episode.episode_id]
        made = SampleMaker(chat, 2048).of_record(record)
        assert [sample.tokens.tolist() for sample in made] == [part.tokens.tolist() for part in parts]
        assert [sample.weight.tolist() for sample in made] == [part.weight.tolist() for part in parts]
        stored = [value for turn in record.turns for value in turn.advantage]
        assert stored == [float(a) for part in parts for a in part.advantage[part.weight != 0]]
        if len(parts) > 1:
            with pytest.raises(TrajectoryError, match="whose history was rewritten"):
                SampleMaker(chat, 2048, retokenize=True).of_record(record)
    assert any(len(parts) > 1 for parts in samples.values())


def test_experts_of_an_agent_are_data_for_imitation(tiny_model):
    agent = {"format": "code", "plan": True, "context": {"last_n_turns": 1}}
    options = {"method": "SFT", "env": "rllm_gym/TextCraft-v0", "data": "expert", "num_expert_episodes": 4}
    options |= {"samples_per_step": 4, "num_evaluation_samples": 1, "max_model_len": 4096, "max_episode_steps": 20}
    options["env_config"] = {"agent": agent, "depth": 2, "system_prompt": ""}
    with run(tiny_model, num_env_runners=0, **options) as found:
        chat = ChatTokenizer(str(tiny_model))
        learnt = []
        for k in range(len(found.algo.samples)):
            sample = found.algo.samples[k]
            learnt.append(chat.decode(sample.tokens[sample.weight != 0]))
    assert sum(text.startswith("I begin with: ") for text in learnt) == 4
    assert sum("```python\n# " in text for text in learnt) >= len(learnt) - 1 > 4


def test_reward_functions_are_metrics_of_their_own(tiny_model):
    rewards = ["environment", {"fn": f"{__name__}:brief", "weight": 0.1}]
    with run(tiny_model, **of_env({"rewards": rewards}), **OPTIONS) as found:
        metrics, played = found.env_metrics, found.algo.sampled.played
        brief = [sum(turn.rewards["brief"] for turn in e.streams["agent"].turns) for e in played]
        assert metrics["reward_brief_mean"] == pytest.approx(np.mean(brief))
        total = metrics["reward_environment_mean"] + 0.1 * metrics["reward_brief_mean"]
        assert metrics["episode_return_mean"] == pytest.approx(total)
        assert 0 < np.mean(brief) < 8


def brief(turn):
    return float(len(turn.text) < 6)
