"""The horizon study: its statistics against values worked out by hand, and that a run which is killed goes on."""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest

from benchmarks.learning import __main__ as command_line
from benchmarks.learning import report, runner, study, tasks, training
from benchmarks.learning.statistics import contrast, crossed_interval, detectable_difference, holm, t_interval

RUN = study.Run("babyai", "scaling_inter", seed=3, lr=1e-4, turns=800, tokens=8000)


# --- statistics ---


def test_the_seed_is_the_unit_of_the_t_interval():
    # By seed the mean differences are 0.1 and 0.3: mean 0.2, deviation 0.1 sqrt(2), error 0.1; t(0.975, 1) = 12.7062.
    found = contrast([[0.2, 0.4], [0.6, 0.6]], [[0.2, 0.2], [0.2, 0.4]])
    assert (found.num_seeds, found.mean) == (2, pytest.approx(0.2))
    assert found.t_interval == pytest.approx((0.2 - 1.27062, 0.2 + 1.27062), abs=1e-5)
    assert found.p == pytest.approx(1 - 2 * np.arctan(2) / np.pi)  # t = 2 with one degree of freedom: Cauchy's


def test_many_tasks_do_not_make_up_for_few_seeds():
    # Five seeds at +1 and five at -1, on all of 100 tasks. The mean of ten has the error sqrt(1 / 10) = 0.316; taken as
    # 1,000 pairs it would be 0.03.
    difference_ST = np.repeat([[1.0], [-1.0]], 5, axis=0) * np.ones((1, 100))
    low, high = crossed_interval(difference_ST)
    assert (low, high) == pytest.approx((-0.62, 0.62), abs=0.05)


def test_few_tasks_widen_the_crossed_interval_however_many_seeds_there_are():
    # 50 tasks at +1 and 50 at -1, for every seed: the error is sqrt(1 / 100) = 0.1.
    difference_ST = np.ones((10, 1)) * np.repeat([1.0, -1.0], 50)
    assert crossed_interval(difference_ST) == pytest.approx((-0.196, 0.196), abs=0.02)


def test_holm_multiplies_the_smallest_most_and_keeps_the_order():
    # 3 x 0.01; 2 x 0.03; 1 x 0.04, but no less than the one before.
    assert holm({"a": 0.04, "b": 0.01, "c": 0.03}, 3) == pytest.approx({"b": 0.03, "c": 0.06, "a": 0.06})
    assert holm({"a": 0.9, "b": 0.8}, 2) == pytest.approx({"a": 1.0, "b": 1.0})


def test_holm_counts_the_tests_that_are_still_to_come():
    early, whole = holm({"a": 0.04, "b": 0.01}, 4), holm({"a": 0.04, "b": 0.01, "c": 0.02, "d": 0.9}, 4)
    assert early == pytest.approx({"b": 0.04, "a": 0.12})
    assert all(whole[name] <= early[name] for name in early)


def test_ten_seeds_find_a_difference_of_one_deviation_with_80_percent():
    # Cohen 1988, table 2.4 (paired): n = 10 has a power of 0.80 at d = 1.0.
    assert detectable_difference(0.05, 10) == pytest.approx(0.05, rel=0.01)
    assert detectable_difference(0.05, 40) < 0.5 * detectable_difference(0.05, 10)


def test_one_seed_has_no_t_interval():
    found = contrast([[1.0, 0.0]], [[0.0, 0.0]])
    assert found.mean == 0.5
    assert np.isnan(found.t_interval).all()
    assert np.isnan(found.p)
    mean, low, high = t_interval([0.5])
    assert mean == 0.5 and np.isnan([low, high]).all()
    assert t_interval([0.5, 0.5]) == (0.5, 0.5, 0.5)


# --- schedules and tasks ---


@pytest.mark.parametrize(
    ("schedule", "horizons"),
    [
        ("short", [3, 3, 3, 3]),
        ("long", [12, 12, 12, 12]),
        ("long_slow", [12, 12, 12, 12]),
        ("long_lr_x3", [12, 12, 12, 12]),
        ("scaling_inter", [3, 3, 6, 12]),
        ("long_to_short", [12, 12, 6, 3]),
        ("tti", [3, 6, 12, 12]),
        ("adaptive", [None, None, None, None]),
    ],
)
def test_stages_are_shares_of_the_turn_budget(schedule, horizons):
    run = study.replace(RUN, schedule=schedule)
    # 0, just after a tenth, just after a third, and after the budget, where the tokens are not spent yet.
    assert [study.horizon_of(run, turns=turns, train_step=5) for turns in (0, 90, 270, 900)] == horizons


def test_the_control_draws_each_horizon_as_often_and_the_same_again_for_a_seed():
    run = study.replace(RUN, schedule="random")
    drawn = [study.horizon_of(run, turns=0, train_step=step) for step in range(300)]
    assert drawn == [study.horizon_of(run, turns=500, train_step=step) for step in range(300)]
    assert all(80 <= count <= 120 for count in Counter(drawn).values())
    assert drawn != [study.horizon_of(study.replace(run, seed=4), turns=0, train_step=step) for step in range(300)]


def test_a_reported_run_is_none_of_the_search():
    lrs = {"long": 1e-4, "scaling_inter": 2e-4}
    reported = list(study.reported_runs(lrs))
    assert not {run.seed for run in reported} & set(study.SEARCH_SEEDS)
    assert [(run.schedule, run.lr) for run in reported[:5]] == [
        ("short", 1e-4), ("middle", 1e-4), ("long", 1e-4), ("scaling_inter", 2e-4), ("random", 2e-4),
    ]  # fmt: skip
    assert Counter(run.schedule for run in reported)["scaling_inter"] == 10
    assert [run.lr for run in reported if run.schedule == study.LONG_SLOW] == [2e-4] * 10
    assert [run.lr for run in reported if run.schedule == study.TROUBLE] == pytest.approx([3e-4] * 5)


def test_presets_have_one_lr_and_their_own_loss():
    lrs = {"grpo": 1e-4, "ppo": 1e-4, "rloo": 5e-5, "reinforce_pp": 2.5e-5}
    runs = list(study.method_runs(study.METHODS, lrs))
    assert [(run.method, run.lr) for run in runs[:4]] == list(lrs.items())
    assert Counter(run.method for run in runs) == dict.fromkeys(study.METHODS, 5)
    assert {run.lr for run in runs if run.method in study.PRESETS} == {5e-5}
    assert {run.lr for run in study.grpo_runs_of_presets()} == {5e-5}
    assert {run.method for run in study.method_search_runs(["preset_gspo", "ppo"])} == {"ppo"}
    assert {run.lr for run in study.method_runs(["ppo"], {"ppo": 1e-4})} == {1e-4}
    gspo, dapo, ppo = (
        training.configuration(study.replace(RUN, method=name)) for name in ("preset_gspo", "preset_dapo", "ppo")
    )
    assert (gspo.clip_high, dapo.clip_high, dapo.filter_groups, ppo.clip_high) == (4e-4, 0.28, "success", 0.28)
    assert (gspo.lr, ppo.critic_lr) == (RUN.lr, 1e-3)


@pytest.mark.parametrize("of", tasks.TASK_SETS.values(), ids=lambda of: of.name)
def test_half_of_the_tasks_need_six_turns_and_the_panel_holds_none_that_is_trained_on(of):
    trained = of.training_tasks
    panel = json.loads(of.panel_file(tasks.LAST).read_text())["item_ids"]
    for items in (trained, panel):
        assert sum(of.length_of[item] >= 6 for item in items) == len(items) / 2
        assert {of.length_of[item] for item in items} == set(range(2, 11))
    assert not set(panel) & set(trained)
    assert set(json.loads(of.panel_file(tasks.TRAINED).read_text())["item_ids"]) <= set(trained)
    assert all(set(of.tasks[part]) <= set(items) for part, items in of.candidates.items())


def test_tasks_are_spread_over_lengths_until_one_has_no_more():
    by_length = {2: ["a"], 3: ["b", "c", "d"], 6: ["e", "f", "g", "h", "i"]}
    chosen = tasks.balanced(by_length)
    assert (len(chosen), set(chosen[:4])) == (8, {"a", "b", "c", "d"})
    assert Counter(item in "bcd" for item in tasks.balanced(by_length, 4)[:2]) == {True: 1, False: 1}


@pytest.mark.parametrize(
    ("successes", "collapsed"),
    [([0.2, 0.3, 0.4, 0.4], False), ([0.2, 0.4, 0.4, 0.1], False), ([0.2, 0.4, 0.4, 0.1, 0.1], True), ([0.2], False)],
)
def test_a_run_has_collapsed_when_its_last_two_readings_are_below_half_of_its_best_two(successes, collapsed):
    assert training.has_collapsed(successes) is collapsed


def test_what_was_spent_is_counted_over_all_episodes_and_success_over_tasks():
    of = SimpleNamespace(length_of={"a": 2, "b": 8})
    # Two episodes of a task in 2 and 4 turns, one that is cut off after 12: success, turns, tokens, truncated.
    found = training.summary(of, {"b": [(False, 12, 240, True)], "a": [(True, 2, 40, False), (True, 4, 80, False)]})
    assert (found["success"], found["solved"], found["by_length"]) == (0.5, [0.0, 1.0], {2: 1.0, 8: 0.0})
    assert (found["turns_per_solved"], found["tokens_per_solved"]) == (9.0, 180.0)
    assert (found["tokens_per_turn"], found["truncated"]) == (20.0, 0.3333)


# --- a run goes on ---


class Killed(BaseException):
    pass


class FakeAlgorithm:
    """Plays 100 turns and 1,100 tokens a train step; is killed after so many of them in one process."""

    def __init__(self, steps_to_live):
        self.steps_to_live, self.training_iteration, self.logdir = steps_to_live, 0, "/nonexistent"
        self.max_episode_steps = 12

    def train(self):
        self.steps_to_live -= 1
        if self.steps_to_live < 0:
            raise Killed
        self.training_iteration += 1
        sampled = {"num_env_steps_sampled": 100, "num_sampled_tokens": 1100}
        return {
            "env_runners": sampled | dict.fromkeys(training.SAMPLER_METRICS, 0.5),
            "learners": {"default_policy": dict.fromkeys(training.LEARNER_METRICS, 0.1)},
            "max_episode_steps": self.max_episode_steps,
            "sampling_s": 1.0,
            "learning_s": 1.0,
        }

    def save_to_path(self, path):
        folder = runner.Path(path)
        folder.mkdir()
        (folder / "step").write_text(str(self.training_iteration))

    def restore_from_path(self, path):
        self.training_iteration = int((runner.Path(path) / "step").read_text())

    def stop(self):
        pass


@pytest.fixture
def train(tmp_path, monkeypatch):
    """Return a function that trains `RUN` in a folder as one process would, for so many train steps."""

    def read_panel(run, algo, kind, progress):
        return {"panel": kind, "train_step": algo.training_iteration, "success": 0.5}

    def train_once(name, steps_to_live, *, deadline_s=np.inf, run=RUN):
        monkeypatch.setattr(training, "configuration", lambda *_: SimpleNamespace(build_algo=lambda: algo))
        algo = FakeAlgorithm(steps_to_live)
        with contextlib.suppress(Killed):
            return training.train(run, tmp_path / name, tmp_path / "start.json", deadline_s=deadline_s)
        return None

    monkeypatch.setattr(training, "ray_here", contextlib.nullcontext)
    monkeypatch.setattr(training, "read_panel", read_panel)
    monkeypatch.setattr(training, "export", lambda *_: None)
    monkeypatch.setattr(training, "CHECKPOINT_EVERY_S", -1)  # after every train step
    return train_once


def test_a_run_reads_each_point_of_both_budgets_once_and_ends_with_the_larger(train, tmp_path):
    assert train("whole", 100) is True
    progress = training.Progress.read(tmp_path / "whole")
    # 800 turns take eight train steps, 8,000 tokens seven and a bit: each step is a point of both.
    assert (len(progress.curve), progress.turns, progress.tokens) == (8, 800, 8800)
    points = [(r["panel"], r["train_step"], r["points"]) for r in progress.readings]
    assert points[0] == ("points", 1, {"turns": [1], "tokens": [1]})
    assert points[-2:] == [
        ("last", 8, {"turns": [8], "tokens": [8]}),
        ("trained", 8, {"turns": [], "tokens": []}),
    ]
    assert [k for _, _, of in points for k in of["turns"]] == list(range(1, 9))
    assert [k for _, _, of in points for k in of["tokens"]] == list(range(1, 9))
    assert [step["horizon"] for step in progress.curve] == [3, 3, 3, 6, 6, 6, 12, 12]


@pytest.mark.parametrize(("turns", "tokens"), [(800, 12_000), (1_100, 8_000)])
def test_a_run_ends_when_the_larger_of_its_budgets_is_spent(train, tmp_path, turns, tokens):
    assert train("run", 100, run=study.replace(RUN, turns=turns, tokens=tokens)) is True
    assert len(training.Progress.read(tmp_path / "run").curve) == 11  # 1,100 turns, or 12,100 tokens


def test_a_run_that_is_killed_again_and_again_ends_as_one_that_was_not(train, tmp_path):
    train("whole", 100)
    for _ in range(7):
        assert train("killed", 1) is None
    assert train("killed", 1) is True
    whole, killed = (training.Progress.read(tmp_path / name) for name in ("whole", "killed"))
    assert killed.curve == whole.curve
    assert killed.readings == whole.readings
    assert (whole.num_chunks, killed.num_chunks) == (1, 8)
    assert len(list((tmp_path / "killed").glob("checkpoint_*"))) == 1


def test_a_chunk_ends_with_a_checkpoint_when_its_time_is_over(train, tmp_path, monkeypatch):
    monkeypatch.setattr(training, "CHECKPOINT_EVERY_S", 1e9)
    assert train("run", 100, deadline_s=0.0) is False
    assert training.Progress.read(tmp_path / "run").checkpoint == "checkpoint_000000"
    assert train("run", 100) is True


def test_a_kill_between_checkpoint_and_progress_goes_on_from_the_checkpoint_before(train, tmp_path):
    assert train("run", 3) is None
    folder = tmp_path / "run"
    (folder / "checkpoint_000004").mkdir()  # cut: nothing in it, and no progress names it
    assert train("run", 1) is None  # comes to the same train step
    assert train("run", 100) is True
    assert len(training.Progress.read(folder).curve) == 8
    assert not (folder / "checkpoint_000004").exists()


def test_a_run_that_has_a_row_is_not_made_again_and_a_cut_row_is(tmp_path):
    rows = tmp_path / "rows.jsonl"
    runs = [study.replace(RUN, seed=seed) for seed in range(3)]
    runner.append_row(rows, runs[0].content)
    with rows.open("a") as file:
        file.write(json.dumps(runs[1].content)[:20])
    assert runner.missing(runs, runner.read_rows(rows)) == runs[1:]
    runner.append_row(rows, runs[1].content)
    assert runner.missing(runs, runner.read_rows(rows)) == runs[2:]


def test_machines_share_the_study_by_seeds(tmp_path, monkeypatch):
    made = []
    monkeypatch.setattr(command_line, "search", lambda out: {"long": 1e-4, "scaling_inter": 2e-4})
    monkeypatch.setattr(command_line, "make_runs", lambda out, runs, file: made.extend(runs))
    command_line.run(tmp_path, [4, 9])
    shared = made[:]
    made.clear()
    command_line.run(tmp_path, study.SEEDS)
    assert Counter(run.seed for run in shared).keys() == {4, 9}
    assert shared == [run for run in made if run.seed in (4, 9)]


def test_a_seed_that_an_environment_lacks_is_refused(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(
        "sys.argv", ["learning", "run", "--on", "textcraft", "--seeds", "4", "7", "--out", str(tmp_path)]
    )
    with pytest.raises(SystemExit):
        command_line.main()
    assert "argument --seeds: textcraft has the seeds [0, 1, 2, 3, 4], not [7]" in capsys.readouterr().err
    assert not any(tmp_path.iterdir())


def test_waiting_for_a_slot_is_no_failure_and_a_run_that_fails_three_times_is_passed_over(tmp_path, monkeypatch):
    statuses = iter([runner.NO_SLOT] * 5 + [1, 1, 1])
    monkeypatch.setattr(runner, "in_slot", lambda *_: next(statuses))
    monkeypatch.setattr(runner, "PAUSE_S", 0)
    assert runner.finish(tmp_path, RUN) is False
    assert next(statuses, None) is None


def test_a_chunk_that_comes_further_before_it_fails_counts_as_none_that_failed(tmp_path, monkeypatch):
    folder = runner.folder_of(tmp_path, RUN)

    def chunk(*_):
        turns = runner.progress_of(folder).get("turns", 0) + 100
        training.Progress(turns=turns, is_finished=turns == 800).write(folder)
        return 1

    monkeypatch.setattr(runner, "in_slot", chunk)
    monkeypatch.setattr(runner, "PAUSE_S", 0)
    assert runner.finish(tmp_path, RUN) is True


def test_of_equal_learning_rates_the_smaller_is_taken():
    assert runner.best([(2e-4, 0.3), (1e-4, 0.3), (4e-4, 0.1)]) == 1e-4
    assert runner.best([(1e-4, 0.2), (1e-4, 0.4), (2e-4, 0.35)]) == 2e-4


def test_textcrafts_schedules_share_the_learning_rate_with_the_best_mean():
    found = {5e-5: (0.5, 0.1), 1e-4: (0.4, 0.4), 2e-4: (0.1, 0.6)}  # of two schedules; each has its best elsewhere
    search = [row("long", 100, [rate, rate]) | {"lr": lr} for lr, rates in found.items() for rate in rates]
    assert runner.common_lr(search) == 1e-4
    runs = list(study.textcraft_runs(1e-4))
    assert {(run.env, run.lr, run.turns, run.tokens) for run in runs} == {("textcraft", 1e-4, 12_000, 240_000)}
    assert {(run.turns, run.tokens) for run in study.textcraft_search_runs()} == {(6_000, 120_000)}
    assert Counter(run.schedule for run in runs) == dict.fromkeys(study.TEXTCRAFT_SCHEDULES, 5)
    assert {training.configuration(run).env for run in runs} == {tasks.TEXTCRAFT.env}
    assert not {run.seed for run in runs} & {run.seed for run in study.textcraft_search_runs()}


# --- the report ---


def row(schedule, seed, solved):
    """Return a row whose policy solves two tasks so often at the end of both budgets, and never before."""

    def reading(kind, points, rates):
        by_length = {"2": rates[0], "8": rates[1]}
        spent = {"turns_per_solved": 10.0, "tokens_per_solved": 200.0, "truncated": 0.5, "panel_hash": "p"}
        return {
            "panel": kind,
            "points": points,
            "success": np.mean(rates),
            "solved": rates,
            "by_length": by_length,
        } | spent

    at = [[k] if k < 8 else [8] for k in range(1, 9)]
    readings = [reading("points", {"turns": of, "tokens": of}, [0.0, 0.0] if of != [8] else solved) for of in at]
    readings.append(reading("trained", {"turns": [], "tokens": []}, [1.0, 1.0]))
    return study.replace(RUN, schedule=schedule, seed=seed).content | {
        "base_model": "w", "collapse": False, "train_steps": 8, "minutes": 10.0, "readings": readings,
        "curve": [{"entropy": 0.3, "gradient_norm": 1.0}], "start": {"last": reading("last", {}, [0.0, 0.0])},
    }  # fmt: skip


def test_the_report_contrasts_scaling_inter_with_the_fixed_horizon_that_the_search_chose(tmp_path, capsys):
    search = [row("long", 100, [0.5, 0.0]), row("middle", 100, [0.5, 0.5]), row("short", 100, [0.5, 0.0])]
    search += [row("scaling_inter", 100, [0.0, 0.0])]
    rows = [row("middle", 0, [0.5, 0.0]), row("middle", 1, [0.5, 0.0]), row("random", 0, [0.0, 0.0])]
    rows += [row("scaling_inter", 0, [0.5, 0.2]), row("scaling_inter", 1, [1.0, 0.1]), row("random", 1, [0.2, 0.0])]
    rows += [row("long_slow", 0, [0.5, 0.0]), row("long_slow", 1, [0.5, 0.0])]  # added later, so that it proves nothing
    for name, of in (("rows", rows), ("search", search)):
        for each in of:
            runner.append_row(tmp_path / name, each)
    report.write_report(*(runner.read_rows(tmp_path / name) for name in ("rows", "search")), tmp_path)
    printed = capsys.readouterr().out
    # By seed 0.1 and 0.3, as above.
    assert "| scaling_inter - middle | turns | 2 | +0.200 | [-1.071, +1.471] |" in printed
    assert "| 0.295 | primary |" in printed
    assert "| random - scaling_inter | tokens | 2 | -0.400 |" in printed
    [added] = [line for line in printed.splitlines() if line.startswith("| scaling_inter - long_slow | turns |")]
    assert "| +0.200 |" in added and "| exploratory |" in added
    assert (tmp_path / "curve_turns.png").stat().st_size > 10_000


def test_a_train_step_that_taught_nothing_has_no_entropy(tmp_path, capsys):
    empty = {"entropy": 0.0, "gradient_norm": 0.0}
    rows = [row("long", 0, [0.1, 0.1]), row("middle", 0, [0.1, 0.1])]
    rows[0]["curve"] = [{"entropy": 0.3, "gradient_norm": 1.0}, empty, {"entropy": 0.5, "gradient_norm": 2.0}, empty]
    rows[1]["curve"] = [empty]
    report.print_schedules(rows, "turns")
    lines = [line.split(" | ") for line in capsys.readouterr().out.splitlines() if line.startswith("| ")]
    at = lines[0].index("entropy")
    assert [line[1:3] for line in lines[1:]] == [["1", "0.100 [nan, nan]"]] * 2  # nor has one seed an interval
    assert [line[at : at + 2] for line in lines[1:]] == [["-", "-"], ["0.400", "1.500"]]


def test_textcrafts_report_has_one_primary_contrast_and_no_others_than_its_schedules(tmp_path, capsys):
    search = [row(name, 100, [rate, rate]) for name, rate in (("middle", 0.5), ("long", 0.2), ("scaling_inter", 0.1))]
    rows = [row(name, seed, [0.5, 0.0]) for name in ("middle", "long", "random") for seed in (0, 1)]
    rows += [row("scaling_inter", 0, [0.5, 0.2]), row("scaling_inter", 1, [1.0, 0.1])]
    report.write_textcraft(rows, search, tmp_path)
    printed = capsys.readouterr().out
    assert "| scaling_inter - middle | turns | 2 | +0.200 | [-1.071, +1.471] |" in printed
    assert printed.count("primary") == 1
    contrasts = [line.split("|")[1].strip() for line in printed.splitlines() if " | turns | 2 |" in line]
    assert contrasts == ["scaling_inter - middle", "long - scaling_inter", "random - scaling_inter"]
    assert (tmp_path / "curve_textcraft_turns.png").stat().st_size > 10_000


def test_textcrafts_rows_at_another_learning_rate_are_a_table_of_their_own_and_exploratory(tmp_path, capsys):
    rates = {"middle": (0.2, 0.5), "long": (0.6, 0.1), "scaling_inter": (0.1, 0.1)}  # at 5e-5 and at 1e-4, the best
    search = [
        row(n, 100, [rate] * 2) | {"lr": lr}
        for n, of in rates.items()
        for lr, rate in zip((5e-5, 1e-4), of, strict=True)
    ]
    search += [row("middle", 100, [0.9, 0.9]) | {"lr": 1e-4}]
    rows = [row(name, seed, [0.4, 0.4]) | {"lr": 1e-4} for name in ("middle", "scaling_inter") for seed in (0, 1)]
    rows += [row(name, seed, [1.0, 0.6]) | {"lr": 5e-5} for name in ("long", "scaling_inter") for seed in (0, 1)]
    report.write_textcraft(rows, search, tmp_path)
    chosen, slow = capsys.readouterr().out.split("lr 5e-05, exploratory:")
    assert "| scaling_inter | 2 | 0.400 " in chosen and "| scaling_inter - middle | turns |" in chosen
    assert "| scaling_inter | 2 | 0.800 " in slow and "| scaling_inter - long | turns |" in slow
    assert "| scaling_inter, 5e-05 - scaling_inter, 0.0001 | turns | 2 | +0.400 |" in slow
    assert (chosen.count("primary"), slow.count("primary"), slow.count("exploratory")) == (1, 0, 3)
    assert (tmp_path / "curve_textcraft_slow_turns.png").stat().st_size > 10_000


def test_the_slow_runs_of_textcraft_follow_those_of_the_plan(tmp_path, monkeypatch):
    made = []
    monkeypatch.setattr(command_line, "common_lr", lambda rows: 2e-4)
    monkeypatch.setattr(command_line, "make_runs", lambda out, runs, file: made.append([run.lr for run in runs]))
    command_line.run_textcraft(tmp_path, [3])
    assert made[1:] == [[2e-4] * 4, [5e-5] * 4]


def row_of(run, solved):
    return row("long", run.seed, solved) | run.content


def test_methods_are_compared_with_grpo_whose_rows_are_the_schedules_too(capsys, tmp_path):
    lrs = dict.fromkeys(study.OWN_LR, 5e-5)

    search = [row_of(run, [0.5, float(run.lr == 5e-5)]) for run in study.method_search_runs(study.METHODS)]
    del search[0]["method"]  # GRPO's first are among the schedules' rows, which name no method
    runs = [run for run in study.method_runs(study.METHODS, lrs) if run.seed < 2 and run.method in ("grpo", "ppo")]
    rows = [row_of(run, [0.5, 0.2 * run.seed] if run.method == "grpo" else [0.9, 0.3]) for run in runs]
    of_grpo = [{**of, "schedule": study.LONG_SLOW} for of in rows if of["method"] == "grpo"]
    assert {run.method for run in runner.missing(runs, runner.as_method_rows(of_grpo))} == {"ppo"}
    other_lr = row("long", 0, [0.0, 0.0]) | {"lr": 1e-4}  # not the one that the search has chosen
    of_ppo = [of for of in rows if of["method"] == "ppo"]
    report.write_methods(of_ppo, search[1:], [*of_grpo, other_lr], search[:1], tmp_path)
    printed = capsys.readouterr().out
    # By seed (0.4 + 0.3) / 2 and (0.4 + 0.1) / 2.
    assert "| ppo - grpo | turns | 2 | +0.300 | [-0.335, +0.935] |" in printed
    assert "| 0.105 | 0.841 |" in printed  # eight times as much: the other methods and the presets are planned, too
    assert "| grpo | 2 | 0.300 " in printed
    report.write_methods(of_ppo, search[2:], of_grpo, search[:1], tmp_path)
    assert "Methods: 23 of 24 runs of their search have ended." in capsys.readouterr().out


def test_presets_are_compared_with_grpo_at_their_own_lr(capsys, tmp_path, monkeypatch):
    drawn = {}
    monkeypatch.setattr(report, "draw", lambda rows, budget, file: drawn.update({file.name: report.names_of(rows)}))
    lrs = {"grpo": 1e-4, "ppo": 1e-4, "rloo": 5e-5, "reinforce_pp": 5e-5}
    wanted = {"grpo": 0.1, "ppo": 0.4, "preset_dapo": 0.5}

    search = [row_of(run, [float(run.lr == lrs[run.method])] * 2) for run in study.method_search_runs(study.METHODS)]
    runs = [run for run in study.method_runs(study.METHODS, lrs) if run.seed < 2 and run.method in wanted]
    slow = [row_of(run, [0.3, 0.3]) for run in study.grpo_runs_of_presets() if run.seed < 2]
    report.write_methods([row_of(run, [wanted[run.method]] * 2) for run in runs], search, slow, [], tmp_path)
    contrasts = [line.split(" | ") for line in capsys.readouterr().out.splitlines() if " - grpo" in line]
    assert [(of[0], of[3], of[7]) for of in contrasts] == [
        ("| ppo - grpo", "+0.300", "-"),  # no seeds differ, so that there is no p to correct
        ("| preset_dapo - grpo_slow", "+0.200", "-"),
        ("| grpo - grpo_slow", "-0.200", "exploratory"),
        ("| ppo - grpo_slow", "+0.100", "exploratory"),
    ]
    assert drawn == {
        "curve_methods.png": ["grpo", "ppo", "grpo_slow"],
        "curve_presets.png": ["grpo_slow", "preset_dapo"],
    }


def test_rows_that_were_judged_on_another_panel_are_refused():
    other = row("middle", 0, [0.0, 0.0])
    other["readings"][7]["panel_hash"] = "q"
    with pytest.raises(ValueError, match="one panel; got 2"):
        report.check_comparable([row("short", 0, [0.0, 0.0]), other])
