"""Texts such as models write, and such as nobody should: LaTeX, escapes, control characters, other scripts, length."""

from __future__ import annotations

from random import Random

WORDS = (
    "\\boxed{look}",
    "\\n",
    "\\text{go}",
    "\\frac{1}{2}",
    "\\",
    "\\\\",
    "\\x1b[31m",
    "\\u0000",
    "\x00",
    "\x1b[2J",
    "\x07",
    "\r",
    "\n",
    "\t",
    "\ud800",
    "\u202e",
    "\u200b",
    "\ufeff",
    "\u0301" * 20,
    "\U0001f600",
    "\u4f60\u597d",
    "\u0645\u0631\u062d\u0628\u0627",
    "\u0e2a\u0e27\u0e31",
    "Action:",
    "Action: ",
    "Thought: I should",
    "Action Input:",
    "<think>",
    "</think>",
    "<search>",
    "</search>",
    "<answer>42</answer>",
    "```python\nimport os\n```",
    "```",
    '{"name": "look", "arguments": {}}',
    "{",
    "[",
    "]",
    "(",
    ")",
    '"',
    "'",
    "`",
    "$(reboot)",
    "; ls",
    "| cat",
    "&&",
    "%s%n",
    "../../etc/passwd",
    "http://127.0.0.1:1/",
    "file:///etc/passwd",
    "javascript:alert(1)",
    "'; DROP TABLE items; --",
    "look",
    "inventory",
    "go north",
    "get 1 oak log",
    "craft 1 stick using 1 planks",
    "click [1]",
    "type [1] [x] [1]",
    "stop [done]",
    "scroll [down]",
    "[0]",
    "[99999999999999999999]",
    "-1",
    "1e309",
    "NaN",
    "None",
    "quit",
    "restart",
    "save",
    "restore",
    "script",
    "undo",
    "verbose",
    "debug",
    "<|im_end|>",
    "<|im_start|>assistant",
    "</s>",
    "[INST]",
)


def hostile_texts(seed: int, num: int) -> list[str]:
    """Return so many texts, the same for the same seed; one in a hundred is 100,000 characters long."""
    rng = Random(seed)
    texts = ["", " ", "\n", "\x00", "\\", "\\n", "\\boxed{look}", "x" * 100_000]
    while len(texts) < num:
        words = rng.choices(WORDS, k=rng.randint(1, 6))
        text = rng.choice(("", " ", "\n")).join(words)
        if rng.random() < 0.3:
            text = f"Thought: {text}\nAction: {rng.choice(WORDS)}{text}"
        if rng.random() < 0.01:
            text = (text + " ") * (100_000 // (len(text) + 1) + 1)
        texts.append(text)
    return texts[:num]
