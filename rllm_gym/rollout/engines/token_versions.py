"""Which weights each token of a request was sampled with, where new ones come while it runs."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt


class TokenVersions:
    """What an engine keeps of its running requests when its weights change."""

    def __init__(self) -> None:
        self._until: dict[str, list[tuple[int, int]]] = {}  # by request: so many tokens were sampled by a version

    def weights_change(self, num_tokens: Mapping[str, int], version: int) -> None:
        """Note how many tokens the running requests have, up to which they were sampled by a version, or older ones."""
        for request_id, count in num_tokens.items():
            self._until.setdefault(request_id, []).append((count, version))

    def take(self, request_id: str, num_tokens: int, version: int) -> npt.NDArray[np.int64] | None:
        """Return the versions of a finished request's tokens, the last of which had `version`; None if all had."""
        if (changes := self._until.pop(request_id, None)) is None:
            return None
        versions = np.full(num_tokens, version, np.int64)
        begin = 0
        for end, older in changes:
            versions[begin:end] = older
            begin = end
        return versions

    def forget(self, request_id: str) -> None:
        """Drop a request that was aborted."""
        self._until.pop(request_id, None)
