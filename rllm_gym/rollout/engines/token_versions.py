"""Which weights each token of a request was sampled with, where new ones come while it runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from rllm_gym.types import Completion


class TokenVersions:
    """The record that an engine keeps of its running requests when its weights change."""

    def __init__(self) -> None:
        self._until: dict[str, list[tuple[int, int]]] = {}  # by request: so many tokens were sampled by a version

    def weights_change(self, num_tokens: Mapping[str, int], version: int) -> None:
        """Note how many tokens the running requests have, up to which they were sampled by a version, or older ones."""
        for request_id, count in num_tokens.items():
            self._until.setdefault(request_id, []).append((count, version))

    def stamp(self, completion: Completion, version: int) -> Completion:
        """Return a completion, the last of whose tokens had `version`, with those of all where others had another."""
        changes = self._until.pop(completion.request_id, None)
        if changes is None or not len(completion.token_ids):
            return completion
        versions = np.full(len(completion.token_ids), version, np.int64)
        begin = 0
        for end, older in changes:
            versions[begin:end] = older
            begin = end
        return replace(completion, policy_versions=versions)

    def forget(self, request_id: str) -> None:
        """Drop a request that was aborted."""
        self._until.pop(request_id, None)
