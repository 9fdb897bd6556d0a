"""How an endpoint's message is read."""

import pytest

from rllm_gym.chat_endpoint import _text_of


def test_parts_are_joined_without_thoughts():
    assert _text_of([{"type": "thinking", "thinking": "hm"}, *({"type": "text", "text": t} for t in "ab")]) == "ab"


def test_a_content_of_another_type_is_an_error():
    with pytest.raises(TypeError, match="got dict"):
        _text_of({"text": "a"})
