"""The page's files, and what a browser may do with them: its Content-Security-Policy.

The scripts are plain ones, in the order below, and not modules: a page that is opened from a file can hold them inline,
where a module could not import another. Texts of models and environments are only ever text nodes; should one become
markup all the same, the policy keeps it from running or loading anything.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable
from pathlib import Path

STATIC = Path(__file__).parent / "static"
STYLES = ("vendor/uPlot.min.css", "style.css")
SCRIPTS = (
    "vendor/preact.umd.js",
    "vendor/hooks.umd.js",
    "vendor/htm.umd.js",
    "vendor/uPlot.iife.min.js",
    "base.js",
    "text.js",
    "store.js",
    "scenes/scenes.js",
    "scenes/textcraft.js",
    "scenes/babyai.js",
    "scenes/web.js",
    "scenes/sciworld.js",
    "scenes/searchqa.js",
    "scenes/textworld.js",
    "list.js",
    "tokens.js",
    "episode.js",
    "group.js",
    "compare.js",
    "curves.js",
    "hub.js",
    "app.js",
)

# No inline script or style, no frame, no form, no other host; nor may a script make markup or code of a text.
_POLICY = (
    "default-src 'none'; script-src {scripts}; style-src {styles}; img-src {images}; connect-src {connect}; "
    "base-uri 'none'; form-action 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
)
# A header can say one thing more than a page's own head.
SERVED_POLICY = (
    _POLICY.format(scripts="'self'", styles="'self'", images="'self'", connect="'self'") + "; frame-ancestors 'none'"
)

_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
{policy}<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="referrer" content="no-referrer">
<meta name="color-scheme" content="light dark">
<title>rllm_gym</title>
{styles}
</head>
<body>
<div id="app"></div>
<noscript>This page needs JavaScript.</noscript>
{scripts}
</body>
</html>
"""


def static_files() -> dict[str, Path]:
    """Return the files that are served, by name: no path from a request ever reaches the file system."""
    return {str(file.relative_to(STATIC)): file for file in STATIC.rglob("*") if file.is_file()}


def served_page() -> str:
    """Return the page as the server sends it."""
    styles = "\n".join(f'<link rel="stylesheet" href="static/{name}">' for name in STYLES)
    scripts = "\n".join(f'<script src="static/{name}"></script>' for name in SCRIPTS)
    return _PAGE.format(policy="", styles=styles, scripts=scripts)


def self_contained_page(data: bytes) -> str:
    """Return the page with all that it needs inside it, and a policy that lets only that run.

    Args:
        data: gzip of what the page shows; it stands there in base64, in which no text can end the element.
    """
    styles = [(STATIC / name).read_text(encoding="utf-8") for name in STYLES]
    scripts = [(STATIC / name).read_text(encoding="utf-8") for name in SCRIPTS]
    for text in scripts:
        if "</script" in text.lower() or "<!--" in text:
            raise AssertionError("a script with what ends its element")
    policy = _POLICY.format(scripts=_hashes(scripts), styles=_hashes(styles), images="'none'", connect="'none'")
    return _PAGE.format(
        policy=f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n',
        styles="\n".join(f"<style>{text}</style>" for text in styles),
        scripts="\n".join(
            [
                f'<script type="application/octet-stream" id="data">{base64.b64encode(data).decode()}</script>',
                *(f"<script>{text}</script>" for text in scripts),
            ]
        ),
    )


def _hashes(texts: Iterable[str]) -> str:
    return " ".join(f"'sha256-{base64.b64encode(hashlib.sha256(t.encode()).digest()).decode()}'" for t in texts)
