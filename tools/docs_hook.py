"""Adds to `docs/` in MkDocs: the repository's own pages, and the reference from docstrings.

`make docs` builds the site. The docstrings are read from the source, so that this imports neither Ray nor torch.
"""

from __future__ import annotations

import ast
import inspect
import os
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ("learning", "speed", "memory", "precision", "environments", "serving")
# Pages that lie elsewhere in the repository.
ELSEWHERE = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    **{f"benchmarks/results/{name}.md": f"results/{name}.md" for name in RESULTS},
    "rllm_gym/assets/tiny/README.md": "tiny_model_card.md",
}
_LINK = re.compile(r"(\[(?:[^\[\]]|\[[^\]]*\])*\])\(([^()\s#]+)(#[^()\s]*)?\)")
_SECTION = re.compile(r"([A-Z][\w ]*):")
_ITEM = re.compile(r"(\*{0,2}\w[\w.`, ]*): (.*)")


def on_config(config: Any) -> Any:
    """List the methods' and the environments' pages in the menu."""
    menu = {title: pages for section in config["nav"] for title, pages in section.items()}
    for title, pages in (("Methods", method_pages()), ("Reference of the environments", environment_pages())):
        menu[title] += [{text[2:].partition("\n")[0].removeprefix("rllm_gym/"): path} for path, text in pages.items()]
    return config


def on_files(files: Any, config: Any) -> Any:
    """Add the pages; MkDocs calls it before it reads any."""
    from mkdocs.structure.files import File

    pages = {site: (ROOT / source).read_text(encoding="utf-8") for source, site in ELSEWHERE.items()}
    for path, text in {**pages, **environment_pages(), **method_pages()}.items():
        files.append(File.generated(config, path, content=text))
    return files


def on_post_build(config: Any) -> None:
    """Take out the addresses that the theme's scripts would load from for old browsers and for diagrams."""
    for script in (Path(config["site_dir"]) / "assets").rglob("*.js"):
        text = script.read_text(encoding="utf-8")
        if "https://unpkg.com/" in text:
            script.write_text(text.replace("https://unpkg.com/", "./"), encoding="utf-8")


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    return with_site_links(markdown, page.file.src_uri)


def with_site_links(markdown: str, site_path: str) -> str:
    """Return a page whose links to files of the repository lead to the site's pages; others become plain text."""
    sources = {site: source for source, site in ELSEWHERE.items()}
    source = sources.get(site_path, f"docs/{site_path}")

    def site_link(link: re.Match[str]) -> str:
        text, target, anchor = link[1], link[2], link[3] or ""
        if ":" in target:
            return link[0]
        file = os.path.normpath(os.path.join(os.path.dirname(source), target))
        if file in ELSEWHERE or file.startswith("docs/"):
            goal = ELSEWHERE.get(file) or file.removeprefix("docs/")
            return f"{text}({os.path.relpath(goal, os.path.dirname(site_path) or '.')}{anchor})"
        return text[1:-1] if (ROOT / file).exists() else link[0]  # what leads nowhere is MkDocs's to say

    return _LINK.sub(site_link, markdown)


def environment_pages() -> dict[str, str]:
    """Return a page for each registered environment, from its class docstring."""
    registered = re.findall(
        r'register_(?:text|multi_agent)_env\(\s*"rllm_gym/(\S+)",\s*"rllm_gym\.(\S+):(\w+)"[,)]',
        (ROOT / "rllm_gym/__init__.py").read_text(),
    )
    pages = {}
    for env_id, module, name in registered:
        kind = _definitions(ROOT / f"{module.replace('.', '/')}.py")[name]
        page = env_id.partition("-")[0].lower()
        folder = module.split(".")[1]
        has_page = (ROOT / f"docs/environments/{folder}.md").exists()
        more = f"[More](../environments/{folder}.md).\n\n" if has_page else ""
        pages[f"reference/{page}.md"] = f"# rllm_gym/{env_id}\n\n{more}{markdown_of(_doc(kind))}"
    return pages


def method_pages() -> dict[str, str]:
    """Return a page for each method, with its source and formulas, and one with all formulas."""
    from rllm_gym.options.methods import METHODS, PolicyGradientOptions

    formulas = {
        name: node
        for file in ("advantages", "multi_agent", "losses", "rewards")
        for name, node in _definitions(ROOT / f"algorithms/functional/{file}.py").items()
        if not name.startswith("_") and _doc(node)
    }
    pages = {}
    modules = {file: _definitions(file) for file in sorted((ROOT / "algorithms").glob("*.py"))}
    for name, method in METHODS.items():
        [(file, found)] = [(file, found) for file, found in modules.items() if f"{name}Config" in found]
        text = [f"# {name}", markdown_of(_doc(found[name])), markdown_of(_doc(found[f"{name}Config"]))]
        text.append(f"Its options: [{name}](../options.md#{name.lower()}). The code: `algorithms/{file.name}`.")
        family = "policy_gradient" if issubclass(method.table, PolicyGradientOptions) else "offline_learner"
        names = dict.fromkeys([*_imported(file), *_imported(ROOT / f"algorithms/{family}.py")])
        used = [formulas[each] for each in names if each in formulas]
        text += ["## Formulas"] if used else []
        text += [_formula(node) for node in used]
        text.append("[All formulas](formulas.md); what every method shares: [Methods](../methods.md).")
        pages[f"reference/method_{name.lower()}.md"] = "\n\n".join(text)
    everything = [_formula(node) for node in formulas.values()]
    pages["reference/formulas.md"] = "\n\n".join(["# Formulas", "`rllm_gym.algorithms.functional`", *everything])
    return pages


def markdown_of(docstring: str) -> str:
    """Return a Google-style docstring as Markdown: its sections are headings, their items a list."""
    lines: list[str] = []
    is_list = False
    in_section = False
    for line in inspect.cleandoc(docstring).splitlines():
        section = _SECTION.fullmatch(line)
        if section:
            is_list, in_section = section[1] in ("Args", "Raises", "Attributes"), True
            lines += ["", f"### {section[1]}", ""]
            continue
        if line and not line.startswith(" "):
            in_section = is_list = False
        text = line[4:] if in_section else line
        item = _ITEM.fullmatch(text) if is_list and not text.startswith(" ") else None
        if item:
            text = f"- `{item[1]}`: {item[2]}"
        lines.append(text if text.startswith("    ") and not is_list else _escaped(text))
    return "\n".join(lines).strip()


def _escaped(text: str) -> str:
    """Return text whose angle brackets are no HTML, and whose arXiv numbers are links; code is left as it is."""
    parts = re.split(r"(`[^`]*`)", text)
    for k in range(0, len(parts), 2):
        parts[k] = parts[k].replace("<", "&lt;")
        parts[k] = re.sub(r"arXiv:(\d{4}\.\d{5})", r"[arXiv:\1](https://arxiv.org/abs/\1)", parts[k])
    return "".join(parts)


def _formula(node: Any) -> str:
    signature = ast.unparse(node.args) if isinstance(node, ast.FunctionDef) else ""
    body = markdown_of(_doc(node)).replace("\n### ", "\n#### ")
    return f"### `{node.name}`\n\n    {node.name}({signature})\n\n{body}"


def _definitions(file: Path) -> dict[str, Any]:
    tree = ast.parse(file.read_text(encoding="utf-8"))
    return {node.name: node for node in tree.body if isinstance(node, ast.ClassDef | ast.FunctionDef)}


def _imported(file: Path) -> list[str]:
    """Return the formulas that a module imports."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    nodes = [node for node in tree.body if isinstance(node, ast.ImportFrom)]
    return [each.name for node in nodes if node.module == "rllm_gym.algorithms.functional" for each in node.names]


def _doc(node: Any) -> str:
    return ast.get_docstring(node) or ""
