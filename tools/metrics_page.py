"""Writes the table of episodes' metrics in `docs/metrics.md`, from the one in `rllm_gym/training/metrics.py`.

python -m tools.metrics_page
"""

from __future__ import annotations

from pathlib import Path

from rllm_gym.training.metrics import EPISODE_METRICS

PAGE = Path(__file__).parent.parent / "docs" / "metrics.md"
BEGIN, END = "<!-- written by `python -m tools.metrics_page` -->\n", "<!-- until here -->\n"


def table() -> str:
    rows = ["| name | unit | meaning |", "|---|---|---|"]
    for names, unit, meaning in EPISODE_METRICS:
        shown = ", ".join(f"`{name}`" for name in names)
        rows.append(f"| {shown} | {unit} | {meaning.replace('|', chr(92) + '|')} |".replace("|  |", "| |"))
    return "\n".join(rows) + "\n"


def page(text: str) -> str:
    """Return the page's text with the table as it is now."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{table()}\n{END}{after}"


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
