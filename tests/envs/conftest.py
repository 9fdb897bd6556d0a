"""Games of ALFWorld's, where the tests of its environment find them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.envs.alfworld_games import write_games
from tests.needs import skip_without


@pytest.fixture(scope="session")
def alfworld_data(tmp_path_factory) -> Iterator[Path]:
    skip_without("alfworld")
    data = tmp_path_factory.mktemp("alfworld")
    write_games(data, train=12, seen=6, unseen=7)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ALFWORLD_DATA", str(data))
        yield data
