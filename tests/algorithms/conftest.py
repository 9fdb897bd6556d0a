import importlib.util
from pathlib import Path

import pytest

spec = importlib.util.spec_from_file_location("rc", Path(__file__).parents[1] / "rollout" / "conftest.py")
rc = importlib.util.module_from_spec(spec)
spec.loader.exec_module(rc)


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory):
    return rc.make_model(0, tmp_path_factory.mktemp("tiny0"))


@pytest.fixture(scope="session")
def other_model(tmp_path_factory):
    return rc.make_model(1, tmp_path_factory.mktemp("tiny1"))
