"""How an endpoint's message is read."""

import pytest

from rllm_gym.chat_endpoint import EndpointError, _text_of


def test_parts_are_joined_without_thoughts():
    parts = [{"type": "thinking", "thinking": "hm"}, *({"type": "text", "text": t} for t in "ab")]
    assert _text_of({"content": parts, "reasoning_content": "hm"}) == "ab"


def test_a_content_of_another_type_is_an_error():
    with pytest.raises(TypeError, match="got dict"):
        _text_of({"content": {"text": "a"}})


@pytest.mark.parametrize(
    ("message", "got"),
    [
        ({"content": None, "tool_calls": [{"id": "1"}]}, "got tool_calls alone"),
        ({"content": "", "tool_calls": [{"id": "1"}], "reasoning_content": "hm"}, "tool_calls and reasoning_content"),
        ({"content": "", "reasoning": "hm"}, "got reasoning alone"),
        ({"content": [{"type": "thinking", "thinking": "hm"}]}, "got nothing alone"),
        ({}, "got nothing alone"),
    ],
)
def test_a_message_without_text_is_an_error_of_the_endpoint_and_no_empty_turn(message, got):
    with pytest.raises(EndpointError, match=got):
        _text_of(message)


def test_an_empty_text_and_a_refusal_are_what_was_said():
    assert _text_of({"content": ""}) == ""
    assert _text_of({"content": None, "refusal": "I would rather not."}) == "I would rather not."
