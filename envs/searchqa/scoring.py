"""Exact match after Search-R1's normalisation of answers."""

from __future__ import annotations

import re
import string
from collections.abc import Iterable

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalize_answer(text: str) -> str:
    """Return `text` in lower case, without ASCII punctuation and English articles, with single spaces.

    Source: Rajpurkar et al. 2016, arXiv:1606.05250 (the SQuAD evaluation); Jin et al. 2025, arXiv:2503.09516.
    """
    # Punctuation goes before articles: "A.N. Other" loses "an", as in SQuAD.
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_NO_PUNCTUATION)).split())


def is_exact_match(answer: str, golden_answers: Iterable[str]) -> bool:
    """Return whether `answer` equals one of `golden_answers` once both are normalised."""
    normalized = normalize_answer(answer)
    return any(normalize_answer(golden) == normalized for golden in golden_answers)


def holds_words(text: str, words: str) -> bool:
    """Return whether `words` stand side by side in `text`, both normalised."""
    return f" {normalize_answer(words)} " in f" {normalize_answer(text)} "
