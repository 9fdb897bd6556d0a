"""Experts for the tasks about typing and reading: what is on the page -> the next action."""

from __future__ import annotations

import re

from rllm_gym.envs.miniwob.view import View, click, expert, fill, submit


@expert("enter-text", "enter-text-dynamic", "enter-text-2")
def enter_text(view: View) -> str:
    text = view.quoted[0]
    if "upper case" in view.objective:
        text = text.upper()
    elif "lower case" in view.objective:
        text = text.lower()
    return fill(view.fields[0], text) or submit(view)


@expert("enter-password")
def enter_password(view: View) -> str:
    # What a password field holds is shown as dots.
    text = view.quoted[0]
    left = [field for field in view.fields if len(field.value) != len(text)]
    return fill(left[0], text) if left else submit(view)


@expert("login-user", "login-user-popup")
def login_user(view: View) -> str:
    if refusal := view.first("button", name="Cancel"):
        return click(refusal)
    name, password = view.quoted[:2]
    if action := fill(view.fields[0], name):
        return action
    if len(view.fields[1].value) != len(password):
        return fill(view.fields[1], password)
    return click(view.first("button", name="Login") or view.first("button", name="OK"))


@expert("enter-date")
def enter_date(view: View) -> str:
    month, day, year = re.findall(r"(\d+)/(\d+)/(\d+)", view.objective)[0]
    return fill(view.first("Date"), f"{year}-{month}-{day}") or submit(view)


@expert("enter-time")
def enter_time(view: View) -> str:
    hour, minute, half = re.findall(r"(\d+):(\d+) ([AP]M)", view.objective)[0]
    time = f"{int(hour) % 12 + 12 * (half == 'PM'):02}:{minute}"
    return fill(view.first("InputTime"), time) or submit(view)


@expert("find-word")
def find_word(view: View) -> str:
    position = re.search(r"the (\d+)", view.objective)
    words = view.texts[0].split()
    word = words[int(position[1]) - 1] if position else ""
    return fill(view.fields[0], re.sub(r"[^a-zA-Z]", "", word)) or submit(view)


@expert("read-table")
def read_table(view: View) -> str:
    label = re.findall(r"value of (.*) into", view.objective)[0]
    return fill(view.fields[0], view.after(view.first("cell", name=label)).nodes[0].name) or submit(view)


@expert("read-table-2")
def read_table_2(view: View) -> str:
    for label in view.texts:
        value = view.after(view.first("cell", name=label.rstrip(":"))).nodes[0].name
        if action := fill(view.after(view.first("StaticText", name=label)).fields[0], value):
            return action
    return submit(view)


@expert("simple-arithmetic")
def simple_arithmetic(view: View) -> str:
    a, sign, b = re.findall(r"(-?\d+) (.) (-?\d+)", view.texts[0])[0]
    result = {"+": int(a) + int(b), "-": int(a) - int(b)}.get(sign, int(a) * int(b))
    return fill(view.fields[0], str(result)) or submit(view)


@expert("simple-algebra")
def simple_algebra(view: View) -> str:
    left, sign, right, result = re.findall(r"(\w+) (.) (\w+) = (\d+)", view.texts[0])[0]
    if sign == "+":
        x = int(result) - int(right if left == "x" else left)
    else:
        x = int(result) + int(right) if left == "x" else int(left) - int(result)
    return fill(view.fields[0], str(x)) or submit(view)


@expert("text-transform")
def text_transform(view: View) -> str:
    return fill(view.fields[0], "".join(view.texts)) or submit(view)


@expert("copy-paste", "copy-paste-2")
def copy_paste(view: View) -> str:
    position = re.search(r"the (\d)", view.objective)
    sources = [field for field in view.fields if field.states.get("multiline")]
    target = next((field for field in view.fields if field not in sources), None)
    return fill(target, sources[int(position[1]) - 1 if position else 0].value) or submit(view)


@expert("scroll-text")
def scroll_text(view: View) -> str:
    return fill(view.fields[-1], re.findall(r"\w+", view.fields[0].value)[-1]) or submit(view)


@expert("use-autocomplete", "use-autocomplete-nodelay")
def use_autocomplete(view: View) -> str:
    start, end = [*view.quoted, ""][:2]
    field = view.fields[0]
    texts = [field.value, *view.after(field).texts]
    fitting = [text for text in texts if text.startswith(start) and text.endswith(end) and text != start]
    return fill(field, fitting[0] if fitting else start) or submit(view)


@expert("use-spinner")
def use_spinner(view: View) -> str:
    field, wanted = view.fields[0], int(re.findall(r"-?\d+", view.objective)[0])  # it takes nothing but arrow keys
    if int(field.value) == wanted:
        return submit(view)
    return (
        f"press [{'ArrowUp' if int(field.value) < wanted else 'ArrowDown'}]"
        if field.states.get("focused")
        else click(field)
    )


@expert("guess-number")
def guess_number(view: View) -> str:
    # A guess is too low or too high; the number is between 0 and 9.
    field = view.fields[0]
    reply = " ".join(view.texts)
    if "Waiting" in reply:
        return fill(field, "5") or submit(view)
    guess = int(re.findall(r"\d+", reply)[0])
    return fill(field, str(guess + (1 if "higher" in reply else -1))) or submit(view)


@expert("generate-number")
def generate_number(view: View) -> str:
    shown = view.texts[0]
    if re.fullmatch(r"\d+", shown):
        number, bound = int(shown), int((re.findall(r"\d+", view.objective) or [0])[0])
        fits = {"less": number < bound, "greater": number > bound, "odd": number % 2 == 1, "even": number % 2 == 0}
        if next(fit for word, fit in fits.items() if word in view.objective):
            return submit(view)
    return click(view.first("button", name="Generate"))


@expert("search-engine")
def search_engine(view: View) -> str:
    position = int(re.findall(r"the (\d)", view.objective)[0]) - 1
    field, search = view.fields[0], view.first("button", name="Search")
    if action := fill(field, view.quoted[0]):
        return action
    links = {link.name: link for link in view.after(search).all("link")}
    if not links:
        return click(search)
    # Three results to each of three pages; the first has no way back, and the last none on.
    page = 0 if "<" not in links else 1 if ">" in links else 2
    if page < position // 3:
        return click(links[">"])
    return click(view.after(search).all("link")[position % 3])


@expert("phone-book")
def phone_book(view: View) -> str:
    name, what = re.findall(r"Find (\w+) in the contact book and click on their (\w+)", view.objective)[0]
    if view.first("heading", name=name):
        label = view.first("StaticText", name=f"{what.split()[0].capitalize()}:")
        return click(view.after(label).first("link"))
    return click(view.first("link", name=">"))


@expert("multi-layouts", "multi-orderings")
def multi_layouts(view: View) -> str:
    genre, director, year = re.findall(r"for (\w+) movies directed by (\w+) from year (\d+)", view.objective)[0]
    wanted = {"genre": genre, "director": director, "year": year, "date": year}
    labels = [
        wanted[word] for text in view.nodes if text.role != "textbox" for word in wanted if word in text.name.lower()
    ]
    for field, value in zip(view.fields, labels, strict=False):
        if action := fill(field, value):
            return action
    return click(view.first("button") or view.all("StaticText")[-1])
