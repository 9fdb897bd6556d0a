"""Fetches the libraries of the viewer's page from npm: `python -m tools.viewer_libraries`, with npm and a network.

A new version: change its number here and in the table of the folder's README, run this, then the viewer's tests.
"""

from __future__ import annotations

import shutil
import subprocess
import tarfile
import tempfile
from pathlib import Path

FOLDER = Path(__file__).resolve().parent.parent / "rllm_gym" / "viewer" / "static" / "vendor"
# Package and version: {file in it: file here}.
PACKAGES = {
    "preact@10.29.8": {
        "dist/preact.umd.js": "preact.umd.js",
        "hooks/dist/hooks.umd.js": "hooks.umd.js",
        "LICENSE": "preact.LICENSE",
    },
    "htm@3.1.1": {"dist/htm.umd.js": "htm.umd.js", "LICENSE": "htm.LICENSE"},
    "uplot@1.6.32": {
        "dist/uPlot.iife.min.js": "uPlot.iife.min.js",
        "dist/uPlot.min.css": "uPlot.min.css",
        "LICENSE": "uPlot.LICENSE",
    },
}


def main() -> None:
    for package, files in PACKAGES.items():
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run(["npm", "pack", "--silent", package], cwd=folder, check=True)
            (archive,) = Path(folder).glob("*.tgz")
            with tarfile.open(archive) as packed:
                packed.extractall(folder, filter="data")
            for source, target in files.items():
                shutil.copy(Path(folder) / "package" / source, FOLDER / target)
        print(f"{package}: {', '.join(files.values())}")


if __name__ == "__main__":
    main()
