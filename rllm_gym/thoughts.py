"""The thoughts in a text, between the marks that families of models have for them."""

from __future__ import annotations

THOUGHTS = (
    ("<think>", "</think>"),
    ("<thinking>", "</thinking>"),
    ("<thought>", "</thought>"),
    ("<reasoning>", "</reasoning>"),
    ("[THINK]", "[/THINK]"),  # Magistral
    ("<seed:think>", "</seed:think>"),
    ("<mm:think>", "</mm:think>"),  # MiniMax
    ("<|START_THINKING|>", "<|END_THINKING|>"),  # Command A
    ("<|inner_prefix|>", "<|inner_suffix|>"),  # Apertus
    ("<|channel>thought", "<channel|>"),  # Gemma 4
    ("\u25c1think\u25b7", "\u25c1/think\u25b7"),  # Kimi-VL
)


def without_thoughts(text: str) -> str:
    """Return a text without its thoughts, which stand between marks; the generation prompt may have opened the first.

    A thought without an end goes to the end of the text.
    """
    for opens, closes in THOUGHTS:
        *thoughts, rest = text.split(closes)
        # Before a closing mark without an opening one, all is a thought.
        kept = [before for before, opened, _ in (part.partition(opens) for part in thoughts) if opened]
        text = "".join([*kept, rest.partition(opens)[0]])
    return text
