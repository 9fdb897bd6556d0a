"""The user's token goes to no server that a file of somebody else's names."""

import pytest

from rllm_gym.bearer_token import token_for
from rllm_gym.envs.searchqa.retrievers.http import HttpRetriever


@pytest.mark.parametrize(
    ("url", "is_sent"),
    [
        ("http://127.0.0.1:1", True),
        ("http://[::1]:1", True),
        ("http://localhost", True),
        ("https://Mine.example/x", True),
        ("https://evil.example", False),
        ("https://localhost.evil.example", False),
        ("https://mine.example@evil.example", False),
        ("https://mine.example.evil.example", False),
    ],
)
def test_the_token_goes_to_this_machine_and_to_named_hosts(monkeypatch, url, is_sent):
    monkeypatch.setenv("RLLM_GYM_TOKEN", "se-cret")
    monkeypatch.setenv("RLLM_GYM_TOKEN_HOSTS", "mine.example, other.example")
    assert token_for(url) == ("se-cret" if is_sent else None)
    assert token_for("http://localhost", url) == ("se-cret" if is_sent else None)
    assert ("Authorization" in HttpRetriever(url)._session.headers) == is_sent
