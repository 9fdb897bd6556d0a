"""A run folder that somebody hands over costs no memory, stops nothing, and waits for nothing."""

import json
import os
import shutil
import socket
import subprocess
import sys

import pytest
import zstandard

from rllm_gym import strangers_files
from rllm_gym.checkpoints import read_results
from rllm_gym.cli.train.model_files import model_fault
from rllm_gym.data.reader import list_shards, read_episodes, read_whole_lines
from rllm_gym.errors import ConfigError, TrajectoryError
from rllm_gym.evaluation.panel import read_panel
from rllm_gym.lineage import RESUMED_FROM, first_trial, read_origin
from rllm_gym.models import TINY_MODEL_DIR
from rllm_gym.strangers_files import read_lines, read_object_or_nothing
from rllm_gym.tokens import ChatTokenizer
from rllm_gym.viewer.episode_index import Index
from tests.data.test_trajectories import write

MIB = 2**20


@pytest.fixture
def run(tmp_path):
    """A run with three good episodes."""
    write(tmp_path / "run" / "trajectories", [0, 1, 2])
    return tmp_path / "run"


def good_line(run):
    [shard] = list_shards(run)
    return next(line for _, line in read_whole_lines(shard))


def test_a_line_that_is_too_long_is_counted_and_not_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(strangers_files, "MAX_LINE_BYTES", 100)
    monkeypatch.setattr(strangers_files, "_BLOCK_BYTES", 7)
    file = tmp_path / "lines"
    file.write_bytes(b"a\n" + b"x" * 500 + b"\n" + b"y" * 99 + b"\n" + b"z" * 100 + b"\nb")
    with file.open("rb") as opened:
        found = list(read_lines(opened))
    assert found == [(b"a\n", 2), (None, 501), (b"y" * 99 + b"\n", 100), (None, 101), (b"b", 1)]


@pytest.fixture(params=["pipe", "list", "deep", "large", "no text"])
def odd_file(request):
    """A function that puts a file that is no JSON object at a path."""

    def put(path):
        path.unlink(missing_ok=True)
        if request.param == "pipe":
            os.mkfifo(path)
        elif request.param == "large":
            path.write_bytes(b"{}")
            os.truncate(path, strangers_files.MAX_JSON_BYTES + 1)
        else:
            path.write_bytes({"list": b"[]", "deep": b'{"a":' * 100_000, "no text": b"\xff"}[request.param])
        return path

    return put


@pytest.mark.timeout(60)
def test_a_panel_that_is_none_is_told_in_a_line(odd_file, tmp_path):
    with pytest.raises(ConfigError, match="panel: must be a file that `rllm-gym panel` wrote"):
        read_panel(odd_file(tmp_path / "panel.json"))


@pytest.mark.timeout(60)
@pytest.mark.promise
@pytest.mark.slow  # imports transformers
@pytest.mark.parametrize("name", ["config.json", "model.safetensors.index.json", "tokenizer.json"])
def test_a_model_folder_with_an_odd_file_is_told_in_a_line(odd_file, tmp_path, name):
    folder = tmp_path / "model"
    shutil.copytree(TINY_MODEL_DIR, folder)
    odd_file(folder / name)
    fault = model_fault(folder, trust_remote_code=False)
    if name == "config.json" or folder.joinpath(name).is_file():  # what is no file counts as absent
        assert fault is not None
        assert name in fault
        assert "\n" not in fault


@pytest.mark.timeout(60)
def test_a_tokenizer_configuration_that_is_none_is_told_in_a_line(odd_file, tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(TINY_MODEL_DIR, folder)
    odd_file(folder / "tokenizer_config.json")
    with pytest.raises(ConfigError, match=r"tokenizer_config\.json must hold a JSON object"):
        ChatTokenizer(folder)


@pytest.mark.parametrize("config", [{"model_type": []}, {"model_type": "qwen2", "text_config": []}])
def test_a_model_configuration_of_another_shape_is_told_in_a_line(tmp_path, config):
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert model_fault(tmp_path, trust_remote_code=False).startswith("base_model: ")


def test_a_bomb_of_zstandard_takes_little_memory_and_the_others_are_read(run):
    """A line of 500 MiB and a million empty ones: no more memory than for the longest line that counts."""
    bomb = run / "trajectories" / "episodes-000007.jsonl.zst"
    with bomb.open("wb") as file, zstandard.ZstdCompressor(level=3).stream_writer(file) as out:
        out.write(b'{"a":"')
        for _ in range(500):
            out.write(b" " * MIB)
        out.write(b'"}\n')
        out.write(b"\n" * MIB)
    assert bomb.stat().st_size < 100_000
    code = (
        "import sys, resource\n"
        "from rllm_gym.data import read_episodes\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "print(len(list(read_episodes(sys.argv[1]))))\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, run], capture_output=True, text=True, check=True)
    num_read, kib = map(int, done.stdout.split())
    assert num_read == 3 and kib < 300 * 1024
    assert "at most 134,217,728 bytes; got more" in done.stderr and "left out 1048576 empty lines" in done.stderr
    index = Index([run])
    index.refresh()
    assert len(index.rows) == 3 and index.num_damaged == 1


@pytest.mark.parametrize("kind", ["pipe", "device", "folder", "socket"])
def test_what_is_no_regular_file_is_left_out_with_a_line(run, kind, caplog, monkeypatch):
    odd = run / "trajectories" / "episodes-000003.jsonl"
    match kind:
        case "pipe":
            os.mkfifo(odd)
        case "device":
            odd.symlink_to("/dev/zero")
        case "folder":
            odd.mkdir()
        case "socket":
            with socket.socket(socket.AF_UNIX) as one:
                monkeypatch.chdir(odd.parent)  # a socket's name is short
                one.bind(odd.name)
    assert len(list(read_episodes(run))) == 3
    assert "no regular file" in caplog.text
    with pytest.raises(TrajectoryError, match="regular file"):
        next(read_whole_lines(odd))
    index = Index([run])
    index.refresh()
    index.refresh()
    assert len(index.rows) == 3 and index.generation == 0
    assert read_object_or_nothing(odd) == {} and read_results(odd) == []


def test_many_damaged_lines_are_counted_and_the_first_ones_told(run, caplog):
    (run / "trajectories" / "episodes-000009.jsonl").write_bytes(b"{}\n" * 500)
    assert len(list(read_episodes(run))) == 3
    assert "left out 500 damaged records" in caplog.text and caplog.text.count("It is left out") == 20
    index = Index([run])
    index.refresh()
    assert index.num_damaged == 500 and len(index.damaged) == 20
    state = json.loads(index.state(0, 0))
    assert state["numDamaged"] == 500 and len(state["damaged"]) == 20


ODD_VALUES = {
    "reward": [float("nan"), float("inf"), 10**400, "1", None, []],
    "train_step": [float("nan"), [], {}, "x", 10**400, 1.5],
    "max_episode_steps": [float("inf"), {}],
    "is_success": [float("nan"), "yes", []],
    "seed": [1e308 * 10, "a", None, 10**30],
    "member": [float("inf"), {}, "b"],
    "agent_id": [[], {"a": 1}],
    "category": [{}, 3],
    "turns": [3, [3], "x", {}],
    "env_id": ["x" * 100_000],
    "episode_id": [{"a": 1}],
}


def test_one_odd_record_never_spoils_the_page_of_the_others(run):
    line = json.loads(good_line(run))
    lines = []
    for key, values in ODD_VALUES.items():
        for value in values:
            record = json.loads(json.dumps(line))
            if key == "reward":
                record["turns"] = [{"reward": value, "action_ids": [1], "policy_version": 0}]
            else:
                record[key] = value
            lines.append(json.dumps(record))
    lines += ["3", "[]", "null", '"x"', "[" * 100_000, '{"turns":' * 5_000]
    (run / "trajectories" / "episodes-000005.jsonl").write_text("\n".join(lines) + "\n")
    index = Index([run])
    index.refresh()

    def no_constant(name):
        raise AssertionError(name)

    state = json.loads(index.state(0, 0), parse_constant=no_constant)  # a browser parses no NaN
    assert len([row for row in state["rows"] if row[index_of(state, "env")] == line["env_id"]]) >= 3
    for number in range(len(index.rows)):
        try:
            json.loads(index.episode(number), parse_constant=no_constant)
        except TrajectoryError as error:
            assert len(str(error)) < 1_000
    assert index.num_damaged >= 25


def index_of(state, column):
    return state["columns"].index(column)


def test_a_thousand_records_of_one_name_are_all_shown(run):
    (run / "trajectories" / "episodes-000008.jsonl").write_bytes(good_line(run) * 1_500)
    index = Index([run])
    index.refresh()
    index.refresh()
    assert len(index.rows) == 1_503 and len({row.id for row in index.rows}) == 1_503 and index.generation == 0


ODD_JSON = ["[]", "3", "null", "{}", '{"trial": 3}', '{"trial": "../../etc"}', "[" * 100_000, '{"trial": "x"', "\x00"]


@pytest.mark.parametrize("text", ODD_JSON, ids=range(len(ODD_JSON)))
def test_odd_files_of_a_run_are_as_if_they_were_not_there(run, text):
    for name in (RESUMED_FROM, "params.json", "evaluation.json", "result.json"):
        (run / name).write_text(text)
    assert read_origin(run) is None and first_trial(run) == run
    assert read_results(run) == []
    assert len(list(read_episodes(run))) == 3
    index = Index([run])
    index.refresh()
    assert len(index.rows) == 3
    index.curves()


def test_trials_that_go_on_from_each_other_end(tmp_path):
    for name, other in (("a", "b"), ("b", "a")):
        (tmp_path / name).mkdir()
        origin = {"trial": other, "checkpoint": "checkpoint_0", "training_iteration": 1}
        (tmp_path / name / RESUMED_FROM).write_text(json.dumps(origin))
        (tmp_path / name / "result.json").write_text('{"training_iteration": 2}\n')
    assert first_trial(tmp_path / "a") == tmp_path / "b"
    assert [result["training_iteration"] for result in read_results(tmp_path / "a")] == [2]


def test_odd_results_spoil_no_curve(run):
    lines = [
        '{"training_iteration": 1, "a": 1.5, "evaluation": 3}',
        '{"training_iteration": 2, "a": NaN, "b": 1e999, "evaluation": {"eval": {"success_rate": NaN}}}',
        '{"training_iteration": "x"}',
        "7",
    ]
    (run / "result.json").write_text("\n".join(lines))
    index = Index([run])
    index.refresh()
    text = json.dumps(index.curves(), allow_nan=False)
    assert '"steps": [1, 2]' in text


def test_an_escape_in_a_name_never_reaches_the_terminal(run, caplog):
    (run / "trajectories" / "\x1b]0;owned\x07.jsonl.x").write_text("")
    (run / "trajectories" / "\x1b[31mepisodes.jsonl").write_bytes(b"{}\n")
    assert len(list(read_episodes(run))) == 3
    assert "\\x1b[31mepisodes.jsonl" in caplog.text
    assert "\x1b" not in caplog.text and "\x07" not in caplog.text
