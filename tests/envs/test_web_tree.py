"""Pages as text: which nodes are shown, and what is cut."""

import pytest

from rllm_gym.envs.web.layout import Layout, read_layout
from rllm_gym.envs.web.tree import Node, estimate_tokens, read_tree, render


def raw(id, role, name="", children=(), *, parent=None, ignored=False, value=None, **states):
    """A node as Chromium describes it."""
    return {
        "nodeId": str(id),
        "backendDOMNodeId": id,
        "parentId": str(parent) if parent is not None else None,
        "ignored": ignored,
        "role": {"value": role},
        "name": {"value": name},
        "childIds": [str(child) for child in children],
        "properties": [{"name": key, "value": {"value": state}} for key, state in states.items()],
        **({"value": {"value": value}} if value is not None else {}),
    }


def lines(nodes, layout=None):
    numbers = {}
    tree = read_tree(nodes, lambda key: numbers.setdefault(key, len(numbers) + 1), layout)
    return ["\t" * node.depth + node.line for node in tree]


def test_a_tree_has_webarenas_layout():
    nodes = [
        raw(20, "RootWebArea", "Shop", (21,), focused=True, url="http://shop.test/"),
        raw(21, "generic", "", (22, 24, 26, 28), parent=20, ignored=True),
        raw(22, "button", "OK", (23,), parent=21, invalid="false", focusable=True),
        raw(23, "StaticText", "OK", (), parent=22),
        raw(24, "textbox", "Name", (25,), parent=21, value="Ann", required=True),
        raw(25, "StaticText", "Ann", (), parent=24),
        raw(26, "checkbox", "Agree", (), parent=21, checked="false"),
        raw(28, "StaticText", "Two  words\n", (29,), parent=21),
        raw(29, "InlineTextBox", "Two words", (), parent=28),
    ]
    assert lines(nodes) == [
        "[1] RootWebArea 'Shop' focused: True",
        "\t[2] button 'OK'",
        "\t[3] textbox 'Name' value: 'Ann' required: True",
        "\t[4] checkbox 'Agree' checked: False",
        "\t[5] StaticText 'Two words'",
    ]


def test_what_takes_clicks_is_shown_and_marked():
    nodes = [
        raw(1, "RootWebArea", "Mail", (2, 5, 6)),
        raw(2, "generic", "", (3, 4), parent=1, ignored=True),  # a row of two texts
        raw(3, "StaticText", "Ann", (), parent=2),
        raw(4, "StaticText", "Hello", (), parent=2),
        raw(5, "none", "", (), parent=1, ignored=True),  # an icon
        raw(6, "generic", "", (7,), parent=1, ignored=True),  # a text that is a link by script
        raw(7, "StaticText", "more", (), parent=6),
    ]
    layout = Layout(clickable=frozenset({2, 5, 6}), hints={5: "trash", 6: "more-link"})
    assert lines(nodes, layout) == [
        "[1] RootWebArea 'Mail'",
        "\t[2] generic '' clickable: True",
        "\t\t[3] StaticText 'Ann'",
        "\t\t[4] StaticText 'Hello'",
        "\t[5] generic '' clickable: True hint: 'trash'",
        "\t[6] StaticText 'more' clickable: True",
    ]
    assert not any("clickable" in line for line in lines(nodes))


def test_an_element_that_listens_for_a_whole_page_is_not_a_button():
    texts = range(3, 15)
    nodes = [raw(1, "RootWebArea", "", (2,)), raw(2, "generic", "", texts, parent=1, ignored=True)]
    nodes += [raw(i, "StaticText", f"line {i}", (), parent=2) for i in texts]
    assert len(lines(nodes, Layout(clickable=frozenset({2})))) == 1 + len(texts)


def test_texts_that_style_sheets_make_have_numbers_of_their_own():
    nodes = [raw(1, "RootWebArea", "", (8, 9))] + [
        raw(i, "StaticText", name, (), parent=1) for i, name in ((8, "a"), (9, "b"))
    ]
    for node in nodes[1:]:
        del node["backendDOMNodeId"]
    assert lines(nodes)[1:] == ["\t[2] StaticText 'a'", "\t[3] StaticText 'b'"]
    assert [node.backend_id for node in read_tree(nodes, lambda key: 1)[1:]] == [
        1,
        1,
    ]  # acted on in their parent's place


def test_a_page_nests_as_deep_as_it_likes():
    depth = 5000
    nodes = [raw(i, "group", f"level {i}", (i + 1,), parent=i - 1 if i else None) for i in range(depth)]
    assert len(lines(nodes)) == depth


def test_a_snapshot_tells_what_takes_clicks_and_what_has_scrolled_away():
    strings = ["BODY", "SPAN", "class", "star big", "circle", "fill", "red", "id"]
    snapshot = {
        "strings": strings,
        "documents": [
            {
                "scrollOffsetY": 100,
                "nodes": {
                    "backendNodeId": [1, 2, 3, 4],
                    "nodeName": [0, 1, 1, 4],
                    "attributes": [[], [2, 3], [2, 3], [5, 6]],
                    "isClickable": {"index": [0, 1, 2]},
                },
                "layout": {"nodeIndex": [0, 1, 3], "bounds": [[0, 0, 9, 999], [0, 10, 5, 5], [0, 150, 5, 5]]},
            }
        ],
    }
    layout = read_layout(snapshot)
    assert layout.clickable == {2}  # not the body, nor what has no box
    assert layout.above == {2}
    assert layout.hints == {2: "star big", 3: "star big", 4: "circle red"}


NODES = [Node(i, "StaticText", f"word number {i}", depth=1) for i in range(1, 101)]


@pytest.mark.parametrize("max_tokens", [40, 100, 300, 500, 10_000])
def test_a_tree_is_cut_to_its_budget_and_says_so(max_tokens):
    text, num_shown = render(NODES, max_tokens=max_tokens, count_tokens=len)
    assert len(text) <= max(max_tokens, 60)  # the note alone may be longer than a budget that small
    assert text.count("StaticText") == num_shown
    if num_shown < len(NODES):
        assert text.splitlines()[-1] == f"[... {len(NODES) - num_shown} more lines below; scroll [down] shows them]"
        longer = "\n".join(f"\t{node.line}" for node in NODES[: num_shown + 1])
        assert max_tokens < 100 or len(longer) + 60 > max_tokens  # no more would have fitted
    else:
        assert "more lines" not in text


def test_a_tree_that_fits_only_without_the_note_is_whole():
    whole = "".join(f"\t{node.line}\n" for node in NODES[:5])
    assert render(NODES[:5], max_tokens=len(whole), count_tokens=len)[1] == 5
    assert render(NODES[:5], max_tokens=len(whole) - 1, count_tokens=len)[1] < 5


def test_lines_above_are_counted():
    text, _ = render(NODES[:2], max_tokens=500, count_tokens=len, num_above=7)
    assert text.splitlines()[0] == "[... 7 more lines above; scroll [up] shows them]"


def test_estimates_of_tokens_are_rather_too_high():
    assert estimate_tokens("[12] button 'OK'\n") >= 8  # as many as GPT's and Qwen's tokenizers make
    assert estimate_tokens("12345") == 5
    assert estimate_tokens("\u6728" * 10) >= 10
