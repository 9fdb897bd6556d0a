"""The loop in line, on a scripted engine: whole token lists, order, limits and failures."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

from rllm_gym.data import EpisodeRecord, make_records, restore_episode
from rllm_gym.errors import ConfigError, EnvError
from rllm_gym.rollout.background import BackgroundSampling
from rllm_gym.rollout.engines.scripted import ScriptedEngine
from rllm_gym.rollout.loop import NUM_MEASURED, CacheRoom, derive_seed
from rllm_gym.types import AGENT, Sample, SamplingParams, TaskGroup


def group(index, item_id, size=1, env_index=0):
    return TaskGroup((7, 0, index), item_id, size, env_index)


def play(loop, *groups, max_episode_steps=None):
    loop.submit(groups, max_episode_steps=max_episode_steps)
    return list(loop.finished_groups())


def only_episode(groups):
    assert [len(g.episodes) + len(g.failed) for g in groups] == [1]
    return (groups[0].episodes + groups[0].failed)[0]


def text_of(episode, talk, agent_id=AGENT):
    """The stream with its parts in brackets, the final observation last."""
    stream = episode.streams[agent_id]
    parts = [f"{talk.decode(t.observation_ids)}[{talk.decode(t.action_ids)}]" for t in stream.turns]
    return "".join(parts) + talk.decode(stream.final_observation_ids)


def test_a_stream_is_the_prompt_the_sampled_tokens_and_the_replies_in_order(talk, make_loop):
    engine = ScriptedEngine([talk.encode("a|"), talk.encode("bc|never"), talk.encode("d!|")])
    engine.policy_version = 5
    episode = only_episode(play(make_loop(engine), group(0, "T")))
    stream = episode.streams[AGENT]
    end = talk.END
    # P P a0 a0 | E1 E1 a1 a1 a1 | E2 E2 a2 a2 a2 | F F
    assert [t.observation_ids.tolist() for t in stream.turns] == [[84, 62], [49, 62], [50, 62]]
    assert [t.action_ids.tolist() for t in stream.turns] == [[97, end], [98, 99, end], [100, 33, end]]
    assert stream.final_observation_ids.tolist() == [51, 62]
    # What the engine was asked with is the concatenation, nothing decoded and encoded again.
    assert [r.prompt_ids for r in engine.requests] == [
        [84, 62],
        [84, 62, 97, end, 49, 62],
        [84, 62, 97, end, 49, 62, 98, 99, end, 50, 62],
    ]
    assert [t.logp.tolist() for t in stream.turns] == [
        [-0.125, -0.25],
        [-0.125, -0.25, -0.375],
        [-0.125, -0.25, -0.375],
    ]
    assert [t.reward for t in stream.turns] == [0.0, 0.0, 1.0]
    assert [t.env_step for t in stream.turns] == [0, 1, 2]
    assert [t.policy_version for t in stream.turns] == [5, 5, 5]
    assert (episode.end_reason, episode.is_truncated, episode.num_env_steps) == ("terminated", False, 3)
    assert episode.info == {"is_success": True}
    assert [m["content"] for m in stream.messages] == ["T>", "a|", "1>", "bc|", "2>", "d!|", "3>"]
    assert (episode.item_id, episode.env_id, stream.module_id) == ("T", "TalkEnv", "main")
    assert episode.timings["total_s"] >= episode.timings["env_s"] > 0


def test_a_fast_episode_ends_while_a_slow_completion_is_being_sampled(talk, make_loop):
    is_slow = lambda prompt: talk.decode(prompt).startswith("S")  # noqa: E731
    engine = ScriptedEngine(
        lambda prompt: talk.encode("!|" if is_slow(prompt) or "2>" in talk.decode(prompt) else "a|"),
        num_steps=lambda prompt: 50 if is_slow(prompt) else 1,
    )
    groups = play(make_loop(engine), group(0, "S"), group(1, "F"))
    assert [g.group.item_id for g in groups] == ["F", "S"]
    # A barrier per turn would have kept F's second turn behind S's first.
    assert [text_of(g.episodes[0], talk) for g in groups] == ["F>[a|]1>[a|]2>[!|]3>", "S>[!|]1>"]
    assert [talk.decode(r.prompt_ids) for r in engine.requests] == ["S>", "F>", "F>a|1>", "F>a|1>a|2>"]


def test_episodes_are_in_member_order_whatever_the_order_they_end_in(talk, make_loop):
    steps = iter([9, 5, 1])
    engine = ScriptedEngine([talk.encode(f"{i}!|") for i in range(3)], num_steps=lambda prompt: next(steps))
    (done,) = play(make_loop(engine), group(0, "T", size=3))
    assert [text_of(e, talk) for e in done.episodes] == ["T>[0!|]1>", "T>[1!|]1>", "T>[2!|]1>"]
    assert [e.member for e in done.episodes] == [0, 1, 2]


def test_unfinished_episodes_are_carried_into_the_next_call_and_keep_both_policy_versions(talk, make_loop):
    def reply(prompt):
        text = talk.decode(prompt)
        return talk.encode("!|" if text.startswith("F") or "1>" in text else "a|")

    engine = ScriptedEngine(reply, num_steps=lambda prompt: 1 if talk.decode(prompt).startswith("F") else 4)
    loop = make_loop(engine)
    loop.submit([group(0, "S"), group(1, "F")], max_episode_steps=None)
    first = next(iter(loop.finished_groups()))
    assert (first.group.item_id, loop.num_unfinished_episodes) == ("F", 1)
    engine.load_weights({}, policy_version=1)
    loop.submit([group(2, "F")], max_episode_steps=None)
    rest = {g.group.item_id: g.episodes[0] for g in loop.finished_groups()}
    # The first turn was submitted under version 0, the second under version 1.
    assert [t.policy_version for t in rest["S"].streams[AGENT].turns] == [0, 1]
    assert [t.policy_version for t in rest["F"].streams[AGENT].turns] == [1]
    assert text_of(rest["S"], talk) == "S>[a|]1>[!|]2>"
    assert loop.num_unfinished_episodes == 0


def test_each_token_keeps_the_version_of_the_weights_that_came_while_its_turn_was_sampled(talk, make_loop):
    engine = ScriptedEngine(lambda prompt: talk.encode("a!|"))
    loop = make_loop(engine)
    calls = itertools.count()

    def between_steps():
        if next(calls) == 1:  # after the reset, and one token
            engine.load_weights({}, policy_version=4)

    loop.submit([group(0, "S")], max_episode_steps=None)
    [ended] = loop.finished_groups(between_steps=between_steps)
    [turn] = ended.episodes[0].streams[AGENT].turns
    assert (turn.policy_version, turn.token_versions.tolist()) == (0, [0, 4, 4])
    num_observed = len(turn.observation_ids)
    assert Sample.of_turns([turn]).policy_version.tolist() == [-1] * num_observed + [0, 4, 4]
    [record] = make_records(
        replace(ended.episodes[0], end_reason="terminated"), env_version="", train_step=0, max_episode_steps=None
    )
    assert EpisodeRecord.model_validate_json(record.model_dump_json()).turns[0].token_versions == [0, 4, 4]
    assert restore_episode([record], ended.group).streams[AGENT].turns[0].token_versions.tolist() == [0, 4, 4]


def test_what_runs_in_the_background_takes_calls_and_stops_while_it_plays(talk, make_loop):
    engine = ScriptedEngine(lambda prompt: talk.encode("a|"))  # never ends
    loop = make_loop(engine)
    background = BackgroundSampling(loop, num_threads=1)
    groups = [group(0, "S")]
    background.begin(lambda: loop.submit(groups, max_episode_steps=50_000), groups)
    background.between_steps(lambda: engine.load_weights({}, policy_version=3))
    assert (engine.policy_version, background.groups) == (3, {groups[0].key})
    with pytest.raises(ZeroDivisionError):
        background.between_steps(lambda: 1 / 0)
    assert background.take(0.0) == []  # and it plays on
    background.stop()
    assert loop.num_unfinished_episodes == 1


def test_groups_that_end_in_the_same_step_are_all_handed_over_across_calls(talk, make_loop):
    engine = ScriptedEngine(lambda prompt: talk.encode("!|"))
    loop = make_loop(engine)
    loop.submit([group(0, "A"), group(1, "B")], max_episode_steps=None)
    first = next(loop.finished_groups())
    assert [first.group.item_id, *(g.group.item_id for g in loop.finished_groups())] == ["A", "B"]


def test_a_new_horizon_holds_for_episodes_begun_later_only(talk, make_loop):
    engine = ScriptedEngine(lambda p: talk.encode("a|"), num_steps=lambda p: 9 if talk.decode(p).startswith("S") else 1)
    loop = make_loop(engine, num_envs=2)
    loop.submit([group(0, "S"), group(1, "F"), group(2, "L")], max_episode_steps=2)
    done = {}
    for finished in loop.finished_groups():
        done[finished.group.item_id] = finished.episodes[0]
        if finished.group.item_id == "F":  # S is in flight, L has been submitted and has not begun
            loop.submit([], max_episode_steps=1)
    assert {item: e.num_env_steps for item, e in done.items()} == {"S": 2, "F": 2, "L": 1}
    assert {e.end_reason for e in done.values()} == {"horizon"}
    assert text_of(done["S"], talk) == "S>[a|]1>[a|]2>"


def test_a_group_keeps_the_horizon_that_it_was_begun_with(talk, make_loop):
    loop = make_loop(ScriptedEngine(lambda prompt: talk.encode("a|")), num_envs=1)
    loop.submit([group(0, "A", size=3), group(1, "B")], max_episode_steps=2)
    calls = itertools.count()
    raised = lambda: next(calls) == 1 and loop.submit([], max_episode_steps=4)  # noqa: E731
    ended = {g.group.item_id: g.episodes for g in loop.finished_groups(between_steps=raised)}
    assert [e.num_env_steps for e in ended["A"]] == [e.horizon for e in ended["A"]] == [2, 2, 2]
    assert (ended["B"][0].num_env_steps, ended["B"][0].horizon) == (4, 4)


def test_an_end_at_the_horizon_counts_as_the_environments_own(talk, make_loop):
    for reply, end_reason in (("!|", "terminated"), ("!?|", "terminated"), ("?|", "truncated"), ("a|", "horizon")):
        engine = ScriptedEngine([talk.encode(reply)])
        assert only_episode(play(make_loop(engine), group(0, "T"), max_episode_steps=1)).end_reason == end_reason


def test_an_episode_without_room_for_a_whole_turn_is_truncated_with_its_history_whole(talk, make_loop):
    engine = ScriptedEngine(lambda prompt: talk.encode("abcde|"))
    loop = make_loop(engine, max_model_len=24)
    episode = only_episode(play(loop, group(0, "T")))
    # P P a*6 E E a*6 E E: 2 + 6 + 2 = 10, and 8 more fit in 24; 18 and 8 more do not.
    assert text_of(episode, talk) == "T>[abcde|]1>[abcde|]2>"
    assert (episode.end_reason, episode.is_truncated, episode.streams[AGENT].num_tokens) == ("context_limit", True, 16)


def test_a_turn_that_exactly_fits_is_played(talk, make_loop):
    engine = ScriptedEngine(lambda prompt: talk.encode("abcde|"))
    episode = only_episode(play(make_loop(engine, max_model_len=26), group(0, "T")))
    assert text_of(episode, talk) == "T>[abcde|]1>[abcde|]2>[abcde|]3>"


def test_a_first_prompt_without_room_fails_at_once_and_is_not_played_again(talk, make_loop):
    engine = ScriptedEngine(lambda prompt: talk.encode("!|"))
    made = []
    loop = make_loop(engine, lambda i: made.append(talk.Env()) or made[-1], max_model_len=12, max_retries=3)
    (done,) = play(loop, group(0, "a long task"))
    assert (done.episodes, len(made), engine.requests) == ([], 1, [])
    assert "must fit in max_model_len = 12; got 12 + 8 tokens" in done.failed[0].error


class CrashError(Exception):
    pass


def crashing(talk, num_crashes):
    """Environments of which the first `num_crashes` raise in their second step; a list of all that were made."""
    made = []

    class CrashingEnv(talk.Env):
        def step(self, action):
            if self.num_steps == 1 and made.index(self) < num_crashes:
                raise CrashError("the browser died")
            return super().step(action)

    return made, lambda env_index: made.append(CrashingEnv()) or made[-1]


def test_a_failed_episode_is_played_again_on_a_fresh_environment_with_the_same_seeds(talk, make_loop):
    def run(num_crashes):
        engine = ScriptedEngine(lambda prompt: talk.encode("!|" if "2>" in talk.decode(prompt) else "a|"))
        made, make_env = crashing(talk, num_crashes)
        return only_episode(play(make_loop(engine, make_env, max_retries=2), group(0, "T"))), made, engine

    undisturbed, _, quiet = run(0)
    episode, made, engine = run(2)
    assert text_of(episode, talk) == text_of(undisturbed, talk) == "T>[a|]1>[a|]2>[!|]3>"
    assert (episode.num_retries, [env.is_closed for env in made]) == (2, [True, True, False])
    # Two attempts of two turns, then the whole one: its three requests have the seeds of the undisturbed run.
    assert [r.seed for r in engine.requests[4:]] == [r.seed for r in quiet.requests]
    assert made[2].reset_seeds == made[0].reset_seeds == [derive_seed(7, 0, 0)]


def test_a_failed_episode_is_played_again_before_new_ones_begin(talk, make_loop):
    engine = ScriptedEngine(lambda prompt: talk.encode("!|" if "1>" in talk.decode(prompt) else "a|"))
    _, make_env = crashing(talk, num_crashes=1)
    play(make_loop(engine, make_env, num_envs=1), group(0, "A"), group(1, "B"))
    assert [talk.decode(r.prompt_ids) for r in engine.requests] == ["A>", "A>a|1>", "A>", "A>a|1>", "B>", "B>a|1>"]


def test_an_episode_that_fails_to_the_last_is_dropped_with_the_error_and_the_others_stay(talk, make_loop):
    class SometimesBroken(talk.Env):
        def reset(self, **kwargs):
            if kwargs["options"]["item_id"] == "broken":
                raise CrashError("no such page")
            return super().reset(**kwargs)

    engine = ScriptedEngine(lambda prompt: talk.encode("!|"))
    loop = make_loop(engine, lambda i: SometimesBroken(), num_envs=1, max_retries=1)
    by_item = {g.group.item_id: g for g in play(loop, group(0, "broken", size=2), group(1, "T"))}
    broken = by_item["broken"]
    assert (broken.episodes, [e.member for e in broken.failed]) == ([], [0, 1])
    assert [(e.end_reason, e.num_retries, e.streams) for e in broken.failed] == [("error", 1, {})] * 2
    assert broken.failed[0].error.startswith("CrashError: no such page (")
    assert broken.failed[0].error.endswith("in reset)")
    assert text_of(by_item["T"].episodes[0], talk) == "T>[!|]1>"


@pytest.mark.parametrize("reward", [float("nan"), float("inf"), None, "1.0", [1.0], 1j, 10**400])
def test_a_reward_that_is_no_number_is_a_failure(talk, make_loop, reward):
    class BadReward(talk.Env):
        def step(self, action):
            ids, _, *rest = super().step(action)
            return ids, reward, *rest

    engine = ScriptedEngine(lambda prompt: talk.encode("!|"))
    episode = only_episode(play(make_loop(engine, lambda i: BadReward(), max_retries=0), group(0, "T")))
    assert episode.error.startswith(
        f"{EnvError.__name__}: BadReward: a reward must be a finite number; got {reward!s:.100}"
    )


def test_an_error_in_close_is_logged_and_hurts_nobody(talk, make_loop, caplog):
    class StuckEnv(talk.Env):
        def step(self, action):
            raise CrashError("gone")

        def close(self):
            raise CrashError("cannot even close")

    episode = only_episode(play(make_loop(ScriptedEngine([[1]] * 2), lambda i: StuckEnv()), group(0, "T")))
    assert episode.error.startswith("CrashError: gone")
    assert "closing StuckEnv failed: CrashError: cannot even close" in caplog.text


def test_an_engines_error_is_not_swallowed(talk, make_loop):
    class BrokenEngine(ScriptedEngine):
        def step(self):
            raise RuntimeError("out of memory")

    with pytest.raises(RuntimeError, match="out of memory"):
        play(make_loop(BrokenEngine([[1]])), group(0, "T"))


def test_environments_are_reused_and_an_idle_one_of_another_index_makes_room(talk, make_loop):
    made = []
    make_env = lambda env_index: made.append((env_index, talk.Env())) or made[-1][1]  # noqa: E731
    loop = make_loop(ScriptedEngine(lambda prompt: talk.encode("!|")), make_env, num_envs=2)
    play(loop, group(0, "A", size=6), group(1, "B", env_index=1), group(2, "C", size=3, env_index=1))
    assert [index for index, _ in made] == [0, 0, 1, 1]
    assert [env.is_closed for _, env in made] == [True, True, False, False]
    assert sum(len(env.reset_seeds) for _, env in made) == 10
    loop.close()
    assert all(env.is_closed for _, env in made)


def test_at_most_num_envs_episodes_are_in_flight(talk, make_loop):
    in_flight, most = set(), []

    class CountingEngine(ScriptedEngine):
        def submit(self, request):
            in_flight.add(request.request_id)
            most.append(len(in_flight))
            super().submit(request)

        def step(self):
            done = super().step()
            in_flight.difference_update(c.request_id for c in done)
            return done

    play(make_loop(CountingEngine(lambda p: talk.encode("ab!|")), num_envs=3), group(0, "T", size=8))
    assert max(most) == 3


def test_seeds_come_from_the_groups_key_member_agent_and_turn_alone(talk, make_loop):
    def seeds(num_envs, steps):
        engine = ScriptedEngine(lambda prompt: talk.encode("a|"), num_steps=lambda prompt: next(steps))
        made = []
        loop = make_loop(engine, lambda i: made.append(talk.Env()) or made[-1], num_envs=num_envs)
        groups = play(loop, group(0, "A", size=2), group(1, "B"), max_episode_steps=2)
        assert {seed for env in made for seed in env.reset_seeds} == {derive_seed(7, 0, 0), derive_seed(7, 0, 1)}
        assert [e.seed for g in sorted(groups, key=lambda g: g.group.key) for e in g.episodes] == [
            derive_seed(7, 0, 0), derive_seed(7, 0, 0), derive_seed(7, 0, 1)
        ]  # fmt: skip
        return sorted(r.seed for r in engine.requests)

    expected = sorted(
        [derive_seed(7, 0, 0, member, 0, turn) for member in (0, 1) for turn in (0, 1)]
        + [derive_seed(7, 0, 1, 0, 0, turn) for turn in (0, 1)]
    )
    assert len(set(expected)) == 6
    assert max(expected) < 2**31
    assert seeds(1, itertools.repeat(1)) == seeds(4, itertools.cycle([3, 1, 2])) == expected


def test_in_line_runs_repeat_exactly(talk, make_loop):
    def run():
        rng = np.random.default_rng(0)
        engine = ScriptedEngine(
            lambda prompt: talk.encode("!|" if len(prompt) > 9 else "abc|"), num_steps=lambda prompt: rng.integers(1, 6)
        )
        groups = play(make_loop(engine, num_envs=3), *(group(i, "T", size=3) for i in range(4)))
        return list(engine.requests), [(g.group.key, text_of(e, talk)) for g in groups for e in g.episodes]

    assert run() == run()


class FakeTime:
    """A clock that moves only when a test says so."""

    now_s = 0.0

    @classmethod
    def perf_counter(cls):
        return cls.now_s


@pytest.fixture
def clock(monkeypatch):
    monkeypatch.setattr("rllm_gym.rollout.loop.time", FakeTime)
    monkeypatch.setattr(FakeTime, "now_s", 0.0)
    return FakeTime


def test_an_episode_that_takes_too_long_fails_and_is_played_again(talk, make_loop, clock):
    made = []

    class SlowEnv(talk.Env):
        def step(self, action):
            clock.now_s += 11.0 if self is made[0] else 1.0
            return super().step(action)

    engine = ScriptedEngine(lambda prompt: talk.encode("!|" if "1>" in talk.decode(prompt) else "a|"))
    loop = make_loop(engine, lambda i: made.append(SlowEnv()) or made[-1], episode_timeout_s=10.0)
    episode = only_episode(play(loop, group(0, "T")))
    assert (episode.end_reason, episode.num_retries, made[0].is_closed) == ("terminated", 1, True)
    assert episode.timings["total_s"] == 11.0 + 1.0 + 1.0
    assert engine.aborted == [engine.requests[1].request_id]  # what the late episode had asked for next


def test_a_timeout_says_what_the_episode_was_waiting_for(talk, make_loop, clock):
    class SlowEngine(ScriptedEngine):
        def step(self):
            clock.now_s += 6.0
            return super().step()

    engine = SlowEngine([talk.encode("abc!|")])
    loop = make_loop(engine, episode_timeout_s=10.0, max_retries=0)
    episode = only_episode(play(loop, group(0, "T")))
    assert "episode_timeout_s = 10.0; got 12.0 s, now waiting for its engine, after 0 steps" in episode.error


def test_a_pause_between_calls_times_nobody_out_and_is_in_nobodys_time(talk, make_loop, clock):
    class SlowEngine(ScriptedEngine):
        def step(self):
            clock.now_s += 2.0
            return super().step()

    engine = SlowEngine(lambda p: talk.encode("!|"), num_steps=lambda p: 1 if talk.decode(p).startswith("F") else 4)
    loop = make_loop(engine, episode_timeout_s=10.0)
    loop.submit([group(0, "S"), group(1, "F")], max_episode_steps=None)
    total_s = {}
    while loop.num_unfinished_episodes:
        finished = next(loop.finished_groups())
        clock.now_s += 1000.0  # the learner learns
        total_s |= {e.item_id: e.timings["total_s"] for e in finished.episodes}
    assert total_s == {"F": 2.0, "S": 8.0}
    loop.submit([group(2, "S"), group(3, "F")], max_episode_steps=None)
    for finished in loop.finished_groups():  # the same inside one call
        clock.now_s += 1000.0
        total_s |= {e.item_id: e.timings["total_s"] for e in finished.episodes}
    assert total_s == {"F": 2.0, "S": 8.0}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_envs": 0}, "num_envs must be at least 1; got 0"),
        ({"max_retries": -1}, "max_retries must be at least 0; got -1"),
        ({"max_model_len": 5000}, "at most what the engine of module 'main' holds, 4096; got 5000"),
        ({"params": SamplingParams(256)}, "max_new_tokens must be between 1 and max_model_len - 1 = 255; got 256"),
        ({"params": {"other": SamplingParams(8)}}, r"every module needs sampling params; got none for \['main'\]"),
    ],
)
def test_bad_options_are_refused_in_one_line(make_loop, options, message):
    with pytest.raises(ConfigError, match=message):
        make_loop(ScriptedEngine([]), **options)


def test_a_module_without_an_engine_is_refused(talk, make_loop):
    loop = make_loop(ScriptedEngine([]), module_of=lambda agent_id, episode: "mian")
    with pytest.raises(ConfigError, match=r"one of \['main'\]; got 'mian' for agent 'agent'"):
        play(loop, group(0, "T"))


def test_new_params_hold_for_episodes_begun_later(talk, make_loop):
    engine = ScriptedEngine(lambda prompt: talk.encode("abcdef|"))
    loop = make_loop(engine)
    loop.submit([group(0, "T")], max_episode_steps=1, params=SamplingParams(max_new_tokens=2, temperature=0.0))
    episode = only_episode(list(loop.finished_groups()))
    assert text_of(episode, talk) == "T>[ab]1>"
    assert engine.requests[0].params == SamplingParams(max_new_tokens=2, temperature=0.0)


def test_a_completion_that_failed_fails_its_episode_which_is_played_again(talk, make_loop):
    class Failing(ScriptedEngine):
        def step(self):  # the first completion of all
            return [replace(c, error="no answer") if c.request_id == "0" else c for c in super().step()]

    reply = lambda prompt: talk.encode("!|")  # noqa: E731
    episode = only_episode(play(make_loop(Failing(reply), max_retries=1), group(0, "T")))
    assert (episode.num_retries, episode.error) == (1, None)
    (done,) = play(make_loop(Failing(reply), max_retries=0), group(0, "T"))
    assert (done.episodes, [failed.error for failed in done.failed]) == ([], ["no answer"])


# --- screening: where the first episodes of a group end alike, the others are not played ---


def screened(index, item_id, size=4):
    return replace(group(index, item_id, size), screening_size=2)


class EngineBySeed(ScriptedEngine):
    """Answers a request by its seed, others with "?", which ends an episode without success."""

    def __init__(self, talk, replies):
        super().__init__(lambda prompt: self.by_seed.get(self.requests[-1].seed, talk.encode("?|")))
        self.by_seed = {seed: talk.encode(reply) for seed, reply in replies.items()}


def winning(talk, task, members):
    return EngineBySeed(talk, {derive_seed(*task.key, member, 0, 0): "!|" for member in members})


@pytest.mark.parametrize(
    ("wins", "members"),
    [
        ((), [0, 1]),
        ((0, 1), [0, 1]),
        ((1,), [0, 1, 2, 3]),
        ((0, 3), [0, 1, 2, 3]),
        ((2, 3), [0, 1]),  # which nobody knows, for they are not played
    ],
)
def test_the_rest_of_a_group_is_played_where_its_first_episodes_end_differently(talk, make_loop, wins, members):
    task = screened(3, "T")
    [finished] = play(make_loop(winning(talk, task, wins)), task, max_episode_steps=1)
    assert [episode.member for episode in finished.episodes] == members
    assert [episode.info["is_success"] for episode in finished.episodes] == [member in wins for member in members]
    assert [episode.is_conditional for episode in finished.episodes] == [member >= 2 for member in members]


def test_screening_changes_no_seed_of_what_is_played(talk, make_loop):
    asked = {}
    for task in (group(3, "T", 4), screened(3, "T")):
        engine = winning(talk, task, {0, 2})
        [finished] = play(make_loop(engine, num_envs=2), task, max_episode_steps=1)
        asked[task.screening_size] = [(e.episode_id, e.seed, text_of(e, talk)) for e in finished.episodes]
    assert asked[None] == asked[2] and len(asked[2]) == 4


def test_a_group_goes_on_before_others_begin_and_others_do_not_wait_for_it(talk, make_loop):
    tasks = [screened(k, f"{k}") for k in range(3)]
    engine = winning(talk, tasks[0], {0})
    finished = play(make_loop(engine, num_envs=2), *tasks, max_episode_steps=1)
    assert [talk.decode(request.prompt_ids)[0] for request in engine.requests] == list("00001122")
    assert [(g.group.item_id, len(g.episodes)) for g in finished] == [("0", 4), ("1", 2), ("2", 2)]


def test_a_single_screened_episode_that_is_left_by_failures_tells_nothing(talk, make_loop):
    class Env(talk.Env):
        def step(self, action):
            if "a" in talk.decode(action):
                raise EnvError("broken")
            return super().step(action)

    task = screened(3, "T", size=3)
    engine = EngineBySeed(talk, {derive_seed(*task.key, 0, 0, 0): "a|"})
    [finished] = play(make_loop(engine, lambda env_index: Env()), task)
    assert [e.member for e in finished.episodes] == [1, 2] and [e.member for e in finished.failed] == [0]


def test_a_loop_that_is_abandoned_returns_what_has_ended_and_drops_the_rest(talk, make_loop):
    class SometimesBroken(talk.Env):
        def reset(self, **kwargs):
            if kwargs["options"]["item_id"] == "broken":
                raise CrashError("no such page")
            return super().reset(**kwargs)

    engine = ScriptedEngine(lambda prompt: talk.encode("!|"))
    loop = make_loop(engine, lambda i: SometimesBroken(), num_envs=1, max_retries=0)
    loop.submit([group(0, "T", 2), group(1, "broken", 2), group(2, "T", 2)], max_episode_steps=None)
    finished = list(loop.finished_groups(pauses=lambda: loop.num_dropped > 0))
    finished += loop.abandon()
    assert loop.num_unfinished_episodes == 0 and list(loop.finished_groups()) == []
    ended = {g.group.key[-1]: (len(g.episodes), len(g.failed)) for g in finished}
    assert ended[0] == (2, 0) and ended[1] == (0, 1) and ended.get(2, (0, 0)) == (0, 0)
    assert only_episode(play(loop, group(3, "T"))).error is None  # it goes on with others


def test_no_more_episodes_are_in_flight_than_the_engines_cache_holds(talk, make_loop, caplog):
    in_flight = []

    class Caching(ScriptedEngine):
        num_cache_tokens = 512

        def step(self):
            in_flight.append(len(self._running))
            return [replace(done, num_cached_tokens=32) for done in super().step()]

    engine = Caching(lambda prompt: talk.encode("!" * 7 + "|"))
    loop = make_loop(engine, num_envs=32)
    groups = [group(k, "x" * 39) for k in range(100)]
    assert len(play(loop, *groups)) == 100
    assert in_flight[:8] == [2] * 8  # while none has ended: whole contexts, of 256 tokens each
    assert max(in_flight) == 32  # a prompt of 40 tokens, of which 32 are cached, and a turn of 8: 16 tokens each
    assert "holds 512 tokens" not in caplog.text

    short = make_loop(engine, num_envs=64)
    in_flight.clear()
    assert len(play(short, *groups)) == 100
    assert max(in_flight) == 32
    assert "holds 512 tokens: 32 episodes are in flight at once, not the 64 of" in caplog.text


def test_episodes_that_are_longer_than_those_that_have_ended_count_as_they_are():
    room = CacheRoom(1000, 400)
    assert room.has_room([]) and room.has_room([50]) and not room.has_room([50, 50])
    for _ in range(NUM_MEASURED // 2):
        room.take(100)
    assert room.has_room([50] * 3) and not room.has_room([50] * 4)  # as if the others had needed 400
    for _ in range(NUM_MEASURED // 2):
        room.take(100)
    assert room.has_room([50] * 9) and not room.has_room([50] * 10)
    assert room.has_room([300] * 3) and not room.has_room([300] * 3 + [50])
