"""Tests are skipped, with the reason, where what they need is missing."""

from __future__ import annotations

import pytest

from rllm_gym.errors import ConfigError
from tests import needs


@pytest.fixture(autouse=True)
def nothing_is_there(monkeypatch):
    def find():
        raise ConfigError("There is none.")

    for name in ("find_chromium", "find_java"):
        monkeypatch.setattr(needs, name, find)
    monkeypatch.setattr(needs, "find_spec", lambda name: None)
    monkeypatch.delenv("RLLM_GYM_SKIP_NOTHING", raising=False)
    needs.missing.cache_clear()
    yield
    needs.missing.cache_clear()


@pytest.mark.parametrize(
    ("what", "reason"),
    [
        ("browser", "There is none"),
        ("java", "scienceworld and py4j of the extra sciworld"),
        ("alfworld", "a C\\+\\+ compiler, cmake and make"),
        ("textworld", "a C compiler and make"),
    ],
)
def test_what_is_missing_skips_a_test_and_says_why_or_fails_it_where_nothing_may_be_skipped(what, reason, monkeypatch):
    with pytest.raises(pytest.skip.Exception, match=reason):
        needs.skip_without(what)
    monkeypatch.setenv("RLLM_GYM_SKIP_NOTHING", "1")
    needs.skip_without(what)
