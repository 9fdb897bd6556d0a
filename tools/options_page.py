"""Writes `docs/options.md`, the reference of everything that `config:` takes, from the table of options.

python -m tools.options_page
"""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

from rllm_gym.options.common import CommonOptions
from rllm_gym.options.methods import METHODS, GroupRelativeOptions, OfflineOptions, PolicyGradientOptions
from rllm_gym.options.rllib import UNUSED
from rllm_gym.options.table import UNSET, OptionTable, list_options
from rllm_gym.options.values import describe

PAGE = Path(__file__).parent.parent / "docs" / "options.md"
HEAD = """# Options

<!-- written by `python -m tools.options_page` from rllm_gym/options/ -->

What `config:` of a YAML file takes, and as keywords every builder method of a configuration
(`GRPOConfig().training(group_size=8)`). A value of another type or beyond its bounds is refused with one line, and so
is any other option of RLlib's, with what to use instead.
"""


def page() -> str:
    parts = [HEAD]
    for table in CommonOptions.__mro__[1 : CommonOptions.__mro__.index(OptionTable)]:
        parts += [f"## {str(inspect.getdoc(table)).rstrip('.')}\n", rows_of(table, table)]
    for title, family, bare in (
        ("Policy-gradient methods", PolicyGradientOptions, CommonOptions),
        ("Policy-gradient methods that compare the episodes of a group", GroupRelativeOptions, CommonOptions),
        ("Methods that learn from recorded episodes", OfflineOptions, CommonOptions),
    ):
        parts += [f"## {title}\n", rows_of(family, family)]
        for name, (table, _) in METHODS.items():
            if table.__mro__[1] is family:
                parts += [f"### {name}\n", str(inspect.getdoc(table)) + other_defaults(table, bare) + "\n"]
                parts += [rows] if (rows := rows_of(table, table)) else []
    parts += ["## What RLlib has and does nothing here\n", "| option | instead |\n|---|---|\n" + refused()]
    return "\n".join(parts)


def rows_of(table: type, owner: type) -> str:
    """Return the options that a class itself declares, as a Markdown table."""
    rows = [option for option in list_options(table).values() if option.owner is owner]
    if not rows:
        return ""
    lines = ["| option | takes | default | meaning |", "|---|---|---|---|"]
    lines += [f"| `{o.name}` | {cell(describe(o.hint))} | {shown(o.default)} | {cell(o.doc)} |" for o in rows]
    return "\n".join(lines) + "\n"


def other_defaults(table: Any, bare: type) -> str:
    """Return a sentence on what a method sets otherwise than its family does."""
    options, common = list_options(table), list_options(bare)
    family = list_options(table.__mro__[1])
    changed = [
        f"`{name}: {yaml_of(option.default)}`"
        for name, option in options.items()
        if option.owner is not table and option.default != (family if name in family else common)[name].default
    ]
    return f" Other than its family's: {', '.join(changed)}." if changed else ""


def refused() -> str:
    rows = [(name, hint) for name, hint in sorted(UNUSED.items()) if hint]
    return "".join(f"| `{name}` | {cell(hint)} |\n" for name, hint in rows)


def shown(default: Any) -> str:
    return "RLlib's" if default is UNSET else f"`{yaml_of(default)}`"


def yaml_of(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return str(list(value) if isinstance(value, tuple) else value).replace("'", "")


def cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(f"wrote {PAGE}")
