"""Templates and tokenizer files, read without transformers, against transformers itself."""

import json
import sys
import time
from datetime import date
from fnmatch import fnmatch
from pathlib import Path

import jinja2
import pytest
from tokenizers import AddedToken
from transformers import AutoTokenizer
from transformers.utils.chat_template_utils import render_jinja_template

from rllm_gym import template_sandbox
from rllm_gym.chat_template import CHAT_TEMPLATE_DIR, find_arguments, find_template, renderer
from rllm_gym.errors import ChatTemplateError, ConfigError
from rllm_gym.models import TINY_MODEL_DIR, resolve_tokenizer
from rllm_gym.tokenizer_files import read_tokenizer
from rllm_gym.tokens import ChatTokenizer
from tests.tokenizers import CHATML, make_tokenizer

PUBLISHED = Path(__file__).parent / "chat_templates"
ROLES = ("user", "assistant")


def turns(*contents, system=None):
    messages = [{"role": ROLES[k % 2], "content": content} for k, content in enumerate(contents)]
    return messages if system is None else [{"role": "system", "content": system}, *messages]


def render(source, messages, *, add_generation_prompt, special_tokens):
    today = str(date.today())  # transformers' own
    return renderer(source, special_tokens, template_date=today)(
        messages=messages, add_generation_prompt=add_generation_prompt
    )


CONVERSATIONS = [
    turns("Go."),
    turns("Go.", system="Be brief.\n Think first. "),
    turns("  Task:\n\ncraft 1 stick \n", "<think>\nA plank.\n</think>\n\nAction: get", " Got \t1\n", "Done.", ""),
    turns("<tool_response>\n1\n</tool_response>", "a", "b", "</think> c", "Zürich 東京 🙂 {{ x }}", system=""),
    turns("a", "", "b", "<think>only", "c<|im_end|>", "d", "e"),
]


@pytest.mark.parametrize("add_generation_prompt", [False, True])
@pytest.mark.parametrize(
    ("shape", "template"),
    [
        ("chatml", TINY_MODEL_DIR / "chat_template.jinja"),
        ("qwen3", CHAT_TEMPLATE_DIR / "qwen3_append_only.jinja"),
        ("qwen2.5", PUBLISHED / "qwen2_5.jinja"),
        ("qwen3", PUBLISHED / "qwen3.jinja"),
        ("llama3", PUBLISHED / "llama3.jinja"),
        ("llama3", PUBLISHED / "llama3_2.jinja"),
    ],
    ids=lambda value: getattr(value, "stem", None),
)
def test_a_published_template_gives_the_tokens_that_transformers_gives(
    tmp_path, shape, template, add_generation_prompt
):
    make_tokenizer(shape).save_pretrained(tmp_path)
    (tmp_path / "chat_template.jinja").write_text(template.read_text())
    theirs = AutoTokenizer.from_pretrained(tmp_path)
    ours = read_tokenizer(tmp_path)
    assert ours.chat_template == theirs.get_chat_template() == template.read_text()
    for messages in CONVERSATIONS:
        text = render(
            ours.chat_template,
            messages,
            add_generation_prompt=add_generation_prompt,
            special_tokens=ours.special_tokens,
        )
        expected = theirs.apply_chat_template(messages, add_generation_prompt=add_generation_prompt, return_dict=False)
        assert ours.backend.encode(text, add_special_tokens=False).ids == expected


def test_the_shipped_tokenizer_gives_the_tokens_that_transformers_gives():
    theirs, ours = AutoTokenizer.from_pretrained(TINY_MODEL_DIR), read_tokenizer(None)
    for messages in CONVERSATIONS:
        text = render(ours.chat_template, messages, add_generation_prompt=True, special_tokens=ours.special_tokens)
        expected = theirs.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
        assert ours.backend.encode(text, add_special_tokens=False).ids == expected


@pytest.mark.parametrize(
    "source",
    [
        "{% for m in messages %}\n  {% if loop.last %}\n {% break %}\n  {% endif %}\n[{{ m.content }}]{% endfor %}",
        "{% for m in messages %}{% if m.role == 'user' %}{% continue %}{% endif %}{{ m.content }}{% endfor %}",
        "{{ messages | tojson }} {{ messages[0] | tojson(indent=2) }} {{ 'é<&>' | tojson(ensure_ascii=true) }}",
        "{{ strftime_now('%Y-%m-%d') }}",
        "{{ tools is none }}{{ documents is none }}{{ bos_token }}{{ eos_token is defined }}",
        "{% generation %}a{% set x = 1 %}{{ messages[0].content }}{% endgeneration %}{{ x is defined }}",
        "{%- if add_generation_prompt is defined and not add_generation_prompt %}{{ 'no' }}{%- endif %}\n",
    ],
)
def test_the_sandbox_has_the_settings_extensions_and_functions_of_transformers(source):
    messages = turns("é <b>", "x", "y")
    (expected,), _ = render_jinja_template([messages], chat_template=source, bos_token="<s>")
    assert render(source, messages, add_generation_prompt=False, special_tokens={"bos_token": "<s>"}) == expected


@pytest.mark.parametrize(
    "source", ["{{ raise_exception('no') }}", "{{ messages.append(1) }}", "{{ ''.__class__.__mro__ }}", "{% for %}"]
)
def test_what_transformers_refuses_is_refused_with_the_same_error(source):
    with pytest.raises(jinja2.TemplateError) as theirs:
        render_jinja_template([turns("x")], chat_template=source)
    with pytest.raises(jinja2.TemplateError) as ours:
        render(source, turns("x"), add_generation_prompt=False, special_tokens={})
    assert (type(ours.value), str(ours.value)) == (type(theirs.value), str(theirs.value))


def test_a_date_is_the_one_that_is_set_and_never_the_clocks():
    source, messages = "{{ strftime_now('%d %b %Y') }} {{ messages[0].content }}", turns("x")
    for given, said in ((None, "01 Jan 2026"), ("2024-07-26", "26 Jul 2024")):
        text = renderer(source, {}, template_date=given)(messages=messages, add_generation_prompt=True)
        assert text == f"{said} x"
    with pytest.raises(ChatTemplateError, match=r"template_date: must be a date like 2026-01-31; got 'July'"):
        renderer(source, {}, template_date="July")


def test_arguments_are_what_a_template_reads_before_it_sets_it():
    arguments = {
        "qwen3": ["enable_thinking"],
        "glm4moe": ["enable_thinking"],
        "gptoss": ["builtin_tools", "model_identity", "reasoning_effort", "strftime_now"],
        "llama3_2": ["custom_tools", "date_string", "strftime_now", "tools_in_user_message"],
    }
    for name, expected in arguments.items():
        assert find_arguments((PUBLISHED / f"{name}.jinja").read_text(), {}) == expected
    gemma = (
        "{% for m in messages %}{% if m.role == 'user' %}{% set role = 'user' %}{% else %}{% set role = 'model' %}"
        "{% endif %}{{ role }}{% endfor %}{% if not thinking is defined %}{% set thinking = false %}{% endif %}"
    )
    assert find_arguments(gemma, {}) == ["thinking"]


GROWING = "{% set ns = namespace(x='aaaaaaaaaa') %}{% for i in range(60) %}{% set ns.x = STEP %}{% endfor %}{{ ns.x }}"


@pytest.mark.parametrize(
    "source",
    [
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{% for m in messages recursive %}{{ loop(messages) }}{% endfor %}",
        "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
        "{{ 'text' * 10**10 }}",
        "{{ 'text' * 9999999999 }}",
        "{{ 9 ** 99999 ** 9 }}",
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        "{% for i in range(99999) %}{{ 'x' * 100000 }}{% endfor %}",
        "{% macro m() %}{% for i in range(99999) %}{{ 'x' * 100000 }}{% endfor %}{% endmacro %}{% set y = m() %}",
        *(GROWING.replace("STEP", step) for step in ("ns.x ~ ns.x", "ns.x + ns.x", "ns.x * 99")),
        *(GROWING.replace("STEP", step) for step in ("ns.x.replace('a', ns.x)", "ns.x | replace('a', ns.x)")),
        "{{ 'a'.center(10000000000) }}{{ 'a' | center(10000000000) }}",
        "{{ '%9999999999d' % 1 }}{{ '{:9999999999}'.format('a') }}{{ '{:{}}'.format('a', 9999999999) }}",
        "{{ ''.join(['a' * 1000000] * 100000) }}",
        "{{ messages | tojson(indent=99999999) }}",
        "{{ 1 + 'a' }}",
        "{{ 'x' }}" * 100_000,
    ],
)
def test_a_template_that_recurses_grows_or_never_ends_is_refused_soon(source, monkeypatch):
    monkeypatch.setattr(template_sandbox, "RENDER_S", 0.5)
    tokenizer = make_tokenizer("chatml")
    ChatTokenizer(tokenizer)  # the first one imports the template's library
    begun_s = time.thread_time()
    with pytest.raises(ChatTemplateError, match="must render ") as caught:
        ChatTokenizer(tokenizer, source)
    assert time.thread_time() - begun_s < 1.5 and "\n" not in str(caught.value)


def test_tokens_that_only_the_config_lists_are_added_as_transformers_adds_them(tmp_path):
    make_tokenizer("chatml").save_pretrained(tmp_path)
    path = tmp_path / "tokenizer_config.json"
    config = json.loads(path.read_text())
    size = len(make_tokenizer("chatml"))
    config["added_tokens_decoder"] = {
        str(size): AddedToken("<think>", normalized=False).__getstate__(),
        str(size + 1): AddedToken("<b>", lstrip=True, special=True).__getstate__(),
    }
    config |= {"sep_token": "<sep>", "extra_special_tokens": ["<extra>"], "image_token": "<image>"}
    path.write_text(json.dumps(config))
    theirs, ours = AutoTokenizer.from_pretrained(tmp_path), read_tokenizer(tmp_path)
    text = "a <think> <b> <sep><extra><image><|im_end|>"
    assert ours.backend.encode(text, add_special_tokens=False).ids == theirs.encode(text, add_special_tokens=False)
    assert ours.backend.get_vocab() == theirs.get_vocab()
    assert ours.special_tokens["sep_token"] == "<sep>" and ours.special_tokens["eos_token"] == theirs.eos_token


def test_special_tokens_of_older_files_are_found(tmp_path):
    make_tokenizer("llama3").save_pretrained(tmp_path)
    path = tmp_path / "tokenizer_config.json"
    config = json.loads(path.read_text())
    named = {"bos_token": {"content": config.pop("bos_token"), "lstrip": False}, "eos_token": config.pop("eos_token")}
    path.write_text(json.dumps(config))
    (tmp_path / "special_tokens_map.json").write_text(json.dumps(named))
    chat = ChatTokenizer(tmp_path)
    assert chat.stop_ids == ChatTokenizer(make_tokenizer("llama3")).stop_ids
    assert chat.decode(chat.encode_chat(turns("x"), add_generation_prompt=False)).startswith("<|begin_of_text|>")


def test_of_several_templates_the_default_is_taken(tmp_path):
    make_tokenizer("chatml").save_pretrained(tmp_path)
    (tmp_path / "chat_template.jinja").unlink()
    path = tmp_path / "tokenizer_config.json"
    config = json.loads(path.read_text())
    templates = [{"name": "tool_use", "template": "x"}, {"name": "default", "template": CHATML}]
    path.write_text(json.dumps(config | {"chat_template": templates}))
    assert (
        read_tokenizer(tmp_path).chat_template == CHATML == AutoTokenizer.from_pretrained(tmp_path).get_chat_template()
    )
    path.write_text(json.dumps(config | {"chat_template": templates[:1]}))
    for tokenizer in (tmp_path, AutoTokenizer.from_pretrained(tmp_path)):
        with pytest.raises(ChatTemplateError, match=r"one must be the default; .* has tool_use\. Give chat_template="):
            ChatTokenizer(tokenizer)


def test_a_tokenizer_without_tokenizer_json_is_read_by_transformers(tmp_path, monkeypatch):
    tokenizer = make_tokenizer("chatml")
    model = json.loads(tokenizer.backend_tokenizer.to_str())["model"]
    (tmp_path / "vocab.json").write_text(json.dumps(model["vocab"]))
    (tmp_path / "merges.txt").write_text("#version: 0.2\n" + "\n".join(map(" ".join, model["merges"])) + "\n")
    config = {"tokenizer_class": "GPT2Tokenizer", "eos_token": "<|im_end|>", "chat_template": CHATML}
    config["extra_special_tokens"] = ["<|im_start|>"]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    chat = ChatTokenizer(tmp_path)
    assert chat.encode_chat(turns("Go."), add_generation_prompt=True) == AutoTokenizer.from_pretrained(
        tmp_path
    ).apply_chat_template(turns("Go."), add_generation_prompt=True, return_dict=False)
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ConfigError, match=r'not installed\. Run: pip install "rllm-gym\[train\]"') as caught:
        ChatTokenizer(tmp_path)
    assert "\n" not in str(caught.value)


def test_a_tokenizer_on_the_hub_is_found_in_the_cache_or_downloaded_alone(tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    snapshot = tmp_path / "models--some--model" / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (tmp_path / "models--some--model" / "refs").mkdir()
    (tmp_path / "models--some--model" / "refs" / "main").write_text("abc")
    asked = []

    def download(repo_id, allow_patterns):
        asked.append((repo_id, allow_patterns))
        make_tokenizer("chatml").save_pretrained(snapshot)
        return str(snapshot)

    monkeypatch.setattr("rllm_gym.models._look_up", lambda repo_id, timeout_s: "")
    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    assert resolve_tokenizer("some/model") == snapshot
    ((repo_id, patterns),) = asked
    assert repo_id == "some/model"
    files = ["tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "model.safetensors", "q4.gguf", "a.bin"]
    assert [name for name in files if any(fnmatch(name, pattern) for pattern in patterns)] == files[:3]
    assert ChatTokenizer("some/model").chat_template == CHATML and len(asked) == 1  # from the cache
    monkeypatch.setattr("rllm_gym.models._look_up", lambda repo_id, timeout_s: "nobody answers")
    with pytest.raises(ConfigError, match=r"got 'other/model' .*not in the local cache, .*: nobody answers"):
        ChatTokenizer("other/model")


def test_a_download_that_breaks_is_told_in_one_line(tmp_path, monkeypatch):
    def download(repo_id, allow_patterns):
        raise OSError("connection\nlost")

    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("rllm_gym.models._look_up", lambda repo_id, timeout_s: "")
    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    with pytest.raises(ConfigError, match=r"tokenizer cannot be downloaded: OSError: connection lost"):
        ChatTokenizer("some/model")


def test_a_template_is_found_by_its_source_its_path_and_its_name(tmp_path):
    (tmp_path / "mine.jinja").write_text(CHATML)
    shipped = (CHAT_TEMPLATE_DIR / "qwen3_append_only.jinja").read_text()
    assert find_template(CHATML) == find_template(tmp_path / "mine.jinja") == CHATML
    assert find_template("qwen3_append_only") == shipped
