"""Builds an index folder of any kind; what `rllm-gym index` calls."""

from __future__ import annotations

from pathlib import Path

from rllm_gym.envs.searchqa.retrievers.store import Report, new_folder
from rllm_gym.errors import ConfigError, nearest

KINDS = ("bm25", "flat", "hnsw")


def build_index(
    corpus: str | Path,
    folder: str | Path,
    *,
    kind: str = "bm25",
    encoder: str | None = None,
    device: str | None = None,
    preset: str | None = None,
    k1: float | None = None,
    b: float | None = None,
    overwrite: bool = False,
    report: Report = lambda stage, done, total: None,
) -> int:
    """Write an index over a corpus and return the number of its passages.

    Args:
        corpus: a JSONL file (or one in gzip) of passages as in wiki-18; "embedded" is the corpus this package ships.
        folder: to write; it must be empty or not there.
        kind: "bm25", "flat" or "hnsw".
        encoder: a Hugging Face encoder by folder or name; for "flat" and "hnsw", which need one.
        device: where passages are encoded; None is the GPU if there is one.
        preset: "bm25s" or "pyserini", for "bm25": its k1 and b.
        k1: in place of the preset's.
        b: in place of the preset's.
        overwrite: replace an index that is there.
        report: called with (stage, done, total) as the work goes on.

    Raises:
        ConfigError: an unknown kind, an encoder missing or superfluous, a corpus that cannot be read, or a folder that
            is in use.
    """
    if kind not in KINDS:
        raise ConfigError(
            f"index: kind must be one of {', '.join(KINDS)}; got {kind!r}. Did you mean {nearest(kind, KINDS)!r}?"
        )
    if (encoder is None) != (kind == "bm25"):
        what = "takes no encoder" if kind == "bm25" else "needs an encoder"
        raise ConfigError(f"index: the kind {kind} {what}; got {encoder!r}. Change kind or encoder.")
    if kind != "bm25" and not preset is k1 is b is None:
        raise ConfigError(f"index: preset, k1 and b belong to the kind bm25; got them with {kind}. Leave them out.")
    from rllm_gym.envs.searchqa.embedded import CORPUS
    from rllm_gym.envs.searchqa.retrievers.bm25 import build_bm25, choose_weights

    weights = choose_weights(preset, k1, b)
    path = CORPUS if corpus == "embedded" else Path(corpus).expanduser()
    if not path.is_file():
        raise ConfigError(f"index: the corpus must be a JSONL file, or embedded; got {str(corpus)!r}. Correct it.")
    with new_folder(Path(folder).expanduser(), overwrite=overwrite) as target:
        if encoder is None:
            return build_bm25(path, target, report, k1=weights[0], b=weights[1])
        from rllm_gym.envs.searchqa.retrievers.dense import build_dense

        return build_dense(path, target, report, kind=kind, encoder=encoder, device=device)
