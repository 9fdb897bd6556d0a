"""SearchQA: protocol, scoring, embedded questions, Search-R1's files, options."""

import json
import subprocess
import sys
import time
from collections import Counter

import pyarrow
import pytest
from pyarrow import parquet

from rllm_gym.envs.searchqa.build_embedded import build_questions, passage_rows, to_jsonl
from rllm_gym.envs.searchqa.embedded import load_passages, load_rows
from rllm_gym.envs.searchqa.embedded_facts import build_corpus
from rllm_gym.envs.searchqa.env import INCORRECT, INVALID, MAX_QUERY_CHARS, SearchQAEnv
from rllm_gym.envs.searchqa.protocol import MAX_PASSAGE_CHARS, Action, is_well_formed, parse_turn
from rllm_gym.envs.searchqa.questions import AGENTGYM_RANGES, FileQuestions
from rllm_gym.envs.searchqa.retrievers import Passage, load_retriever, need
from rllm_gym.envs.searchqa.scoring import holds_words, is_exact_match, normalize_answer
from rllm_gym.errors import ConfigError, EnvError

QUESTIONS = load_rows("questions.jsonl.gz")


def env_at(item, **kwargs):
    env = SearchQAEnv(**kwargs)
    env.reset(seed=0, options={"item_id": item})
    return env


class Scripted:
    """A retriever that returns what it is given, and remembers the queries."""

    def __init__(self, *passages):
        self.passages, self.queries = list(passages), []

    def search(self, queries, topk):
        self.queries += queries
        if isinstance(self.passages[0], Exception):
            raise self.passages[0]
        return [self.passages[:topk] for _ in queries]


# Scoring and protocol.


@pytest.mark.parametrize(
    ("text", "normalized"),
    [
        ("The  Beatles!", "beatles"),
        ("An apple a day", "apple day"),
        ("theatre", "theatre"),
        ("A.N. Other", "other"),  # punctuation goes first, so "an" appears
        ("U.S.A.", "usa"),
        ("2,138,551", "2138551"),
        ("well-known", "wellknown"),
        ("J\u00f6ns Berzelius", "j\u00f6ns berzelius"),
        ("\u201cquoted\u201d", "\u201cquoted\u201d"),  # only ASCII punctuation is dropped
        ("the", ""),
    ],
)
def test_answers_are_normalised_as_search_r1_does(text, normalized):
    assert normalize_answer(text) == normalized


def test_an_answer_must_equal_a_golden_one_as_a_whole():
    golden = ["Paris", "City of Light"]
    assert is_exact_match("the paris.", golden) and is_exact_match("city of the light", golden)
    assert not is_exact_match("Paris, France", golden) and not is_exact_match("", golden)


@pytest.mark.parametrize(
    ("text", "action"),
    [
        ("<think>x</think><search> capital of Peru </search>", Action("search", "capital of Peru")),
        ("<answer>Lima</answer>", Action("answer", "Lima")),
        ("<answer>\nLima\n</answer> trailing", Action("answer", "Lima")),
        ("<search>a</search><answer>b</answer>", Action("search", "a")),
        ("<answer>a</answer><search>b</search>", Action("answer", "a")),
        ("<answer>a</answer> or <answer>b</answer>", Action("answer", "b")),
        ("<search>open <answer>b</answer>", Action("answer", "b")),
        ("<search>a\nb</search>", Action("search", "a\nb")),
        ("<search>  </search><answer>b</answer>", Action("")),
        ("<SEARCH>a</SEARCH>", Action("")),
        ("search: a", Action("")),
        ("", Action("")),
    ],
)
def test_the_first_closed_search_or_answer_counts(text, action):
    assert parse_turn(text) == action


def test_token_ids_for_a_text_are_refused():
    with pytest.raises(TypeError, match="obs_type"):
        parse_turn([1, 2])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<think>x</think><search>a</search>", True),
        (" <think>x\ny</think>\n<answer>a</answer>\n", True),
        ("<answer>a</answer>", False),
        ("<think>x</think><search>a</answer>", False),
        ("so <think>x</think><search>a</search>", False),
        ("<think>x</think><search>a</search> and", False),
        ("<think>x</think> hm <search>a</search>", False),
        ("<think>x</think><search>a</search><answer>b</answer>", False),
        ("<think>x</think><search>a</search><think>y</think><answer>b</answer>", False),
        ("<think>x<think>y</think><search>a</search>", False),
        ("<think>x</think><search>a</search><information>b</information>", False),
        ("<think>x</think><answer>b <search>c</search></answer>", False),
    ],
)
def test_a_well_formed_turn_is_one_thought_and_one_action(text, expected):
    assert is_well_formed(text) is expected


# Turns of the environment.


def test_a_search_shows_the_passages_in_search_r1s_form():
    passages = Passage('"Peru"\nIts capital\nis Lima.', 2.0), Passage('"Lima"\nA city.', 1.0), Passage("none", 0.5)
    env = env_at(0, retriever=Scripted(*passages), topk=2)
    assert env.step("<search>Peru</search>") == (
        '<information>Doc 1(Title: "Peru") Its capital\nis Lima.\nDoc 2(Title: "Lima") A city.</information>',
        0.0,
        False,
        False,
        {"item_id": "searchqa_0", "category": "one_hop", "is_success": False, "is_invalid_action": False},
    )


def test_a_query_without_a_known_word_finds_nothing():
    assert env_at(0).step("<search>xyzzy plugh</search>")[0] == "<information>No passage found.</information>"


def test_wrong_answers_may_be_repeated_and_a_right_one_is_paid_once():
    env = env_at(0)
    right = f"<answer>{QUESTIONS[0]['golden_answers'][0]}</answer>"
    steps = [env.step(text) for text in ("<answer>nonsense</answer>", "huh", right, right, "<answer>no</answer>")]
    assert [step[0] for step in steps] == [INCORRECT, INVALID, "Correct.", "Correct.", INCORRECT]
    assert [step[1] for step in steps] == [0.0, 0.0, 1.0, 0.0, 0.0]
    assert [step[2] for step in steps] == [False, False, True, True, False]
    assert [step[4]["is_success"] for step in steps] == [False, False, True, True, True]


GOOD, BAD = "<think>x</think><answer>{}</answer>", "<answer>{}</answer>"
SEARCH = "<think>x</think><search>y</search>"


@pytest.mark.parametrize(
    ("turns", "rewards"),
    [
        ([(GOOD, True)], [1.0]),
        ([(BAD, True)], [0.8]),
        ([(GOOD, False)], [0.2]),
        ([(BAD, False)], [0.0]),
        ([(SEARCH, None), (GOOD, True)], [0.0, 1.0]),
        ([("<search>y</search>", None), (GOOD, True)], [0.0, 0.8]),
        ([("huh", None), (GOOD, False), (GOOD, True)], [0.0, 0.0, 0.8]),
        ([(GOOD, False), (GOOD, False), (BAD, True), (GOOD, True)], [0.2, 0.0, 0.8, 0.0]),
        ([(BAD, False), (GOOD, True)], [0.0, 0.8]),
    ],
)
def test_the_format_reward_is_paid_once_with_the_first_answer(turns, rewards):
    env = env_at(0, format_reward=0.2)
    answer = {True: QUESTIONS[0]["golden_answers"][0], False: "nonsense", None: ""}
    for _ in range(2):  # a reset forgets
        assert [env.step(text.format(answer[kind]))[1] for text, kind in turns] == pytest.approx(rewards)
        env.reset(options={"item_id": 0})


def test_long_passages_and_queries_are_cut_and_lone_surrogates_replaced():
    scripted = Scripted(*[Passage("t" * 9 + "\n" + "x" * 100_000, 1.0)] * 10)
    env = env_at(0, retriever=scripted, topk=10)
    reply = env.step("<search>\ud800" + "q" * 5000 + "</search>")[0]
    assert reply in env.observation_space
    assert reply.count("x") == 10 * (MAX_PASSAGE_CHARS - 10)
    assert scripted.queries == ["?" + "q" * (MAX_QUERY_CHARS - 1)]


def test_a_failed_search_is_the_environments_error():
    with pytest.raises(EnvError, match="down"):
        env_at(0, retriever=Scripted(EnvError("down"))).step("<search>a</search>")


# Embedded questions.


def test_there_are_thousands_of_passages_and_hundreds_of_questions_per_hop_in_both_splits():
    counts = Counter((row["hops"], row["split"]) for row in QUESTIONS)
    assert counts == {(1, "train"): 713, (2, "train"): 569, (1, "eval"): 181, (2, "eval"): 136}
    assert len(load_passages()) == len(set(load_passages())) == 3451
    assert len({row["question"] for row in QUESTIONS}) == len(QUESTIONS)


def test_no_named_thing_occurs_in_both_splits():
    things = {"train": set(), "eval": set()}
    answers = {"train": set(), "eval": set()}
    for row in QUESTIONS:
        things[row["split"]] |= {normalize_answer(name) for name in row["entities"]}
        answers[row["split"]] |= set(map(normalize_answer, row["golden_answers"]))
    assert not things["train"] & things["eval"]
    for split, other in (("train", "eval"), ("eval", "train")):
        assert not answers[split] & things[other]
    # What both splits may answer is a number, like a year, or a short code: Na and .na.
    assert all(answer.split()[0].isdigit() or len(answer) <= 2 for answer in answers["train"] & answers["eval"])


def test_entities_are_all_that_a_question_names():
    names = {normalize_answer(name) for row in QUESTIONS for name in row["entities"]}
    for row in QUESTIONS:
        text = f" {normalize_answer(row['question'] + ' ' + row['golden_answers'][0])} "
        named = [name for name in names if f" {name} " in text]
        # A name may hold another one, as "Lisbon Airport" holds "Lisbon".
        assert all(any(holds_words(entity, name) for entity in row["entities"]) for name in named), row


def test_each_gold_query_finds_its_gold_passage_and_the_last_one_holds_the_answer():
    retriever, passages = load_retriever("bm25"), load_passages()
    for row in QUESTIONS:
        gold = [passages[int(i)] for i in row["passages"]]
        for query, passage in zip(row["queries"], gold, strict=True):
            assert passage in [found.contents for found in retriever.search([query], 3)[0]], row
        assert any(holds_words(gold[-1], answer) for answer in row["golden_answers"]), row
        assert len(set(gold)) == row["hops"]
        assert not holds_words(row["question"], row["golden_answers"][0])


def test_the_answer_of_a_two_hop_question_is_not_in_its_first_passage():
    passages = load_passages()
    rows = [row for row in QUESTIONS if row["hops"] == 2]
    told = sum(holds_words(passages[int(row["passages"][0])], row["golden_answers"][0]) for row in rows)
    assert told == 0


def test_bm25_finds_the_gold_passage_of_a_one_hop_question_in_its_top_3():
    rows = [row for row in QUESTIONS if row["hops"] == 1]
    found = load_retriever("bm25").search([row["question"] for row in rows], 3)
    gold = [load_passages()[int(row["passages"][0])] for row in rows]
    hits = sum(passage in [hit.contents for hit in hits] for passage, hits in zip(gold, found, strict=True))
    assert hits / len(rows) > 0.95  # 0.999 when written


def test_the_expert_answers_every_embedded_question():
    env = SearchQAEnv(split="all", format_reward=0.2)
    assert env.item_ids == [f"searchqa_{i}" for i in range(len(QUESTIONS))]
    for index, row in enumerate(QUESTIONS):
        observation, info = env.reset(options={"item_id": index})
        assert (observation, info["category"]) == (
            f"Question: {row['question']}",
            f"{('one', 'two')[row['hops'] - 1]}_hop",
        )
        steps = [env.step(env.expert_action()) for _ in range(row["hops"] + 1)]
        assert [step[1] for step in steps] == [0.0] * row["hops"] + [1.0]


def test_the_shipped_corpus_and_questions_are_what_the_builder_makes():
    corpus = build_corpus()
    assert passage_rows(corpus) == load_rows("corpus.jsonl.gz")
    assert [json.loads(line) for line in to_jsonl(build_questions(corpus)).splitlines()] == QUESTIONS


# Files in Search-R1's format.


def row_of(source="nq", index=0, split="test", question="Who?", answers=("me",), **changes):
    return {
        "data_source": source,
        "question": question,
        "golden_answers": list(answers),
        "prompt": [{"role": "user", "content": f"Answer the question. Question: {question}\n"}],
        "reward_model": {"style": "rule", "ground_truth": {"target": list(answers)}},
        "extra_info": {"split": split, "index": index},
        **changes,
    }


def write_jsonl(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_the_item_ranges_are_agentgyms():
    stops = [stop for _, stop in AGENTGYM_RANGES.values()]
    assert [start for start, _ in AGENTGYM_RANGES.values()] == [0, *stops[:-1]]
    assert stops == [3610, 14923, 29190, 36595, 49171, 51588, 51713, 130881, 221328]


def test_rows_get_agentgyms_numbers_from_parquet_and_from_jsonl(tmp_path):
    test = [row_of("nq", 0), row_of("nq", 3609), row_of("bamboogle", 124, question="B?"), row_of("triviaqa", 0)]
    train = [row_of("nq", 0, "train"), row_of("hotpotqa", 90446, "train", answers=("x", "y"))]
    write_jsonl(tmp_path / "test.jsonl", test)
    parquet.write_table(pyarrow.Table.from_pylist(train), tmp_path / "train.parquet")
    questions = FileQuestions([tmp_path])
    assert questions.numbers("eval", questions.categories) == [0, 3609, 3610, 51712]
    assert questions.numbers("train", questions.categories) == [51713, 221327]
    assert questions.numbers("all", ["nq"]) == [0, 3609, 51713]
    assert (questions[51712].text, questions[51712].category) == ("B?", "bamboogle")
    assert questions[221327].answers == ("x", "y")
    assert 1 not in questions and 221327 in questions


def test_rows_without_extra_info_are_counted_and_the_files_name_says_the_split(tmp_path):
    rows = [row_of("nq"), row_of("musique"), row_of("nq", question="Second?")]
    for row in rows:
        del row["extra_info"], row["reward_model"]
    rows[2]["question"] = None  # it stands in the prompt
    questions = FileQuestions([write_jsonl(tmp_path / "dev.jsonl", rows)])
    assert questions.numbers("all", questions.categories) == [0, 1, 49171]
    assert (questions[1].text, questions[1].answers) == ("Second?", ("me",))
    (tmp_path / "dev.jsonl").rename(tmp_path / "nq_train.jsonl")
    write_jsonl(tmp_path / "nq_train.jsonl", [rows[0]])
    assert FileQuestions([tmp_path]).numbers("train", ["nq"]) == [51713]


def test_an_environment_of_files_plays_them_with_their_datasets_as_categories(tmp_path):
    rows = [row_of("nq", 7), row_of("popqa", 0, answers=("Lima", "Ciudad de los Reyes")), row_of("nq", 1, "train")]
    path = write_jsonl(tmp_path / "data.jsonl", rows)
    assert SearchQAEnv(data=path).item_ids == ["searchqa_51714"]
    assert SearchQAEnv(data=[str(path)], split="eval").item_ids == ["searchqa_7", "searchqa_14923"]
    env = SearchQAEnv(data=path, split="eval", datasets="popqa", item_ids=["searchqa_14923", 7])
    assert env.item_ids == ["searchqa_14923"]
    assert env.reset()[1]["category"] == "popqa"
    assert env.expert_action() == "<think>I need to look this up.</think>\n<search>Who?</search>"
    env.step(env.expert_action())
    assert env.step(env.expert_action())[1:3] == (1.0, True)
    assert env_at("searchqa_14923", data=path).step("<answer>ciudad de los reyes</answer>")[1] == 1.0
    with pytest.raises(ConfigError, match="got 8, which is in none of"):
        env.reset(options={"item_id": 8})


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (row_of("squad"), "must have a data_source of nq"),
        (row_of("popqa", 0, "train"), "with a train split; got 'popqa'"),
        (row_of("bamboogle", 125), "index below 125 in bamboogle's test split; got 125"),
        (row_of("nq", -1), "index below 3610"),
        (row_of(answers=()), "must have answers"),
        (row_of(question="", prompt=None), "must have a question"),
        (["nq"], "must be an object"),
        ({"data_source": ["nq"], "question": "Q?", "golden_answers": ["a"]}, "must have a data_source of nq"),
        ({"data_source": "nq", "question": 7, "golden_answers": ["a"]}, "must have a question"),
        ({"data_source": "nq", "prompt": "Question: Q?", "golden_answers": ["a"]}, "must have a question"),
        ({"data_source": "nq", "question": "Q?", "golden_answers": 5}, "must have answers"),
        ({"data_source": "nq", "question": "Q?", "reward_model": "x", "extra_info": "y"}, "must have answers"),
        ({"data_source": "nq", "question": "Q?", "extra_info": {"index": True}}, "index below 3610"),
    ],
)
def test_a_bad_row_is_named_in_one_line(tmp_path, row, message):
    path = write_jsonl(tmp_path / "test.jsonl", [row_of("nq", 9), row])
    with pytest.raises(ConfigError) as error:
        FileQuestions([path])
    assert message in str(error.value) and f"row 2 of {path}" in str(error.value) and "\n" not in str(error.value)


def test_two_rows_of_one_number_and_broken_json_are_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"row 2 of .* number of another row; got '3 twice'"):
        FileQuestions([write_jsonl(tmp_path / "test.jsonl", [row_of("nq", 3)] * 2)])
    (tmp_path / "test.parquet").write_bytes(b"PAR1 no more")
    with pytest.raises(ConfigError, match=r"^SearchQAEnv: .*test\.parquet must be a Parquet file; got [^\n]*$"):
        FileQuestions([tmp_path / "test.parquet"])
    (tmp_path / "test.parquet").unlink()
    (tmp_path / "test.jsonl").write_text("{")
    with pytest.raises(ConfigError, match=r"row 1 of .* must be JSON"):
        FileQuestions([tmp_path])


# Options.


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"topk": 0}, "topk must be from 1 to 10"),
        ({"topk": True}, "topk must be"),
        ({"format_reward": 1.0}, "format_reward must be from 0 to below 1"),
        ({"format_reward": -0.1}, "format_reward must be"),
        ({"datasets": "nq"}, "datasets must be some of one_hop, two_hop; got 'nq'"),
        ({"datasets": ["two_hops"]}, "Did you mean 'two_hop'"),
        ({"datasets": 3}, "datasets must be some of one_hop, two_hop; got 3"),
        ({"data": 3}, "data must be a path or a list of paths; got 3"),
        ({"retriever": "bm52"}, "Did you mean 'bm25'"),
        ({"retriever": 3}, "with search(queries, topk); got 3."),
        ({"url": "http://127.0.0.1:1/retrieve"}, "url belongs to the retriever http"),
        ({"retriever": "http", "index": "x"}, "index belongs to the retriever bm25 or dense"),
        ({"encoder": "x"}, "encoder belongs to the retriever dense"),
        ({"retriever": "http"}, "needs the url of a server"),
        ({"retriever": "dense"}, "dense needs an index"),
        ({"index": "/nonexistent"}, "index must be a folder written by `rllm-gym index`"),
        ({"data": "/nonexistent.parquet"}, "data must be .parquet or .jsonl files"),
        ({"data": "/dev/null"}, "data must be"),
    ],
)
def test_a_wrong_option_is_refused_in_one_line(options, message):
    with pytest.raises(ConfigError) as error:
        SearchQAEnv(**options)
    assert message in str(error.value) and "\n" not in str(error.value)


def test_datasets_restrict_the_draws():
    env = SearchQAEnv(datasets=["two_hop"], split="eval")
    assert len(env.item_ids) == 136
    assert {env.reset(seed=seed)[1]["category"] for seed in range(5)} == {"two_hop"}


def test_a_missing_package_is_named_with_the_command_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "Stemmer", None)
    with pytest.raises(
        ConfigError, match=r'^SearchQA-v0 needs the pystemmer package: pip install "rllm-gym\[searchqa\]"\.$'
    ):
        need("Stemmer", "pystemmer")


def test_playing_the_default_environment_loads_no_heavy_library():
    program = """
import sys, gymnasium, rllm_gym
env = gymnasium.make("rllm_gym/SearchQA-v0", obs_type="text")
env.reset(seed=0)
env.step(env.unwrapped.expert_action())
heavy = ("torch", "transformers", "ray", "vllm", "deepspeed", "faiss", "mendeleev", "requests")
print([name for name in heavy if name in sys.modules])
"""
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert run.stdout == "[]\n"


@pytest.mark.parametrize(
    "text", ["<search>", "<answer>", "<think>", "<answer>a</answer><answer>", "<think></think>", "<think> "]
)
def test_a_turn_is_read_in_time_that_grows_with_it(text):
    begun = time.process_time()
    parse_turn(text * 100_000), is_well_formed(text * 100_000)  # half a minute, if it grew with the square
    assert time.process_time() - begun < 2
