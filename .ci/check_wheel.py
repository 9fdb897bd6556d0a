"""Checks wheels: `check_wheel.py WHEEL_OF_THE_CHECKOUT WHEEL_OF_THE_SDIST`.

The first holds exactly the package: every file of rllm_gym, also behind its symlinks, and nothing else. The second
holds the same files with the same contents.
"""

import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]


def files_of(folder: Path, name: str) -> set[str]:
    """Return the files below a folder as the wheel should name them. rglob does not follow symlinks, so this does."""
    found = set()
    for path in folder.iterdir():
        inner = f"{name}/{path.name}"
        if path.is_dir():
            if path.name != "__pycache__":
                found |= files_of(path, inner)
        else:
            found.add(inner)
    return found


def contents(wheel: str) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


of_checkout, of_sdist = map(contents, sys.argv[1:])
expected = files_of(ROOT / "rllm_gym", "rllm_gym")
got = {name for name in of_checkout if ".dist-info/" not in name}
for title, names in [("missing from the wheel", expected - got), ("too much in the wheel", got - expected)]:
    if names:
        sys.exit(f"check_wheel: {title}: {', '.join(sorted(names)[:10])}. See [options.package_data] in setup.cfg.")
assert "rllm_gym/envs/base.py" in got, "the symlinked folders were not followed"
assert any(name.startswith("rllm_gym/assets/") for name in got)
assert "rllm_gym/tuned_examples/quickstart.yaml" in got
if differing := {name for name in of_checkout | of_sdist if of_checkout.get(name) != of_sdist.get(name)}:
    sys.exit(f"check_wheel: the sdist's wheel differs: {', '.join(sorted(differing)[:10])}. See MANIFEST.in.")
print(f"wheel: {len(got)} files, as they should be, also through the sdist")
