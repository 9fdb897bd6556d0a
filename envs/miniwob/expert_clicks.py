"""Experts for the tasks about clicking and choosing: what is on the page -> the next action."""

from __future__ import annotations

import re

from rllm_gym.envs.miniwob.view import View, click, expert, fill, submit

# Buttons, links and menus.


@expert("click-test", "click-test-2", "click-test-transfer", "click-button", "unicode-test")
def click_button(view: View) -> str:
    name = re.search(r'button (\w+)\.|"(.*)" button', view.objective)
    return click(view.first("button", name=(name[1] or name[2]) if name else None))


@expert("click-button-sequence")
def click_button_sequence(view: View) -> str:
    one = view.first("button", name="ONE")
    return click(view.first("button", name="TWO") if one and one.states.get("focused") else one)


@expert("click-dialog", "click-dialog-2")
def click_dialog(view: View) -> str:
    name = view.quoted[0]
    return click(view.first("button", name="Close" if name.lower() == "x" else name))


@expert("click-link", "navigate-tree")
def click_link(view: View) -> str:
    if target := view.first("StaticText", name=view.quoted[0]):
        return click(target)
    closed = [node for node in view.all("generic") if "expandable-hitarea" in node.hint]
    return click(closed[0] if closed else None)


@expert("click-tab")
def click_tab(view: View) -> str:
    return click(view.first("link", name=view.objective.removeprefix("Click on ").rstrip(".")))


@expert("click-tab-2", "click-tab-2-easy", "click-tab-2-medium", "click-tab-2-hard")
def click_tab_2(view: View) -> str:
    if target := view.first("StaticText", name=view.quoted[0]):
        return click(target)
    tabs = view.all("tab")
    selected = next((i for i, tab in enumerate(tabs) if tab.states.get("selected")), -1)
    return click(tabs[(selected + 1) % len(tabs)])


@expert("click-collapsible", "click-collapsible-nodelay")
def click_collapsible(view: View) -> str:
    section = view.first("tab")
    return click(section) if section and not section.states["expanded"] else submit(view)


@expert("click-collapsible-2", "click-collapsible-2-nodelay")
def click_collapsible_2(view: View) -> str:
    if target := view.first("StaticText", name=view.quoted[0]):
        return click(target)
    sections = view.all("tab")
    expanded = next((i for i, section in enumerate(sections) if section.states.get("expanded")), -1)
    return click(sections[(expanded + 1) % len(sections)])


@expert("click-menu")
def click_menu(view: View) -> str:
    path = view.objective.removeprefix("Select ").split(">")
    shown = [item for name in path if (item := view.first("menuitem", name=name))]
    if len(shown) == len(path):
        return click(shown[-1])
    return f"hover [{shown[-1].id}]" if shown else ""


@expert("click-widget")
def click_widget(view: View) -> str:
    kind = view.quoted[0]
    role = {"text": "textbox", "textarea": "textbox"}.get(kind, kind)
    return click(next((n for n in view.all(role) if n.states.get("multiline", False) == (kind == "textarea")), None))


@expert("focus-text", "focus-text-2")
def focus_text(view: View) -> str:
    position = re.search(r"(\d)\w\w input", view.objective)
    return click(view.fields[int(position[1]) - 1 if position else 0])


@expert("click-color")
def click_color(view: View) -> str:
    color = re.search(r"the (\w+) colored", view.objective)
    return click(view.first("generic", hint=color[1])) if color else ""


@expert("grid-coordinate")
def grid_coordinate(view: View) -> str:
    return click(view.first("graphics-symbol", hint=view.objective.split()[-1].rstrip(".")))


@expert("ascending-numbers")
def ascending_numbers(view: View) -> str:
    # After the first click the numbers are covered; what covers them still says which is which.
    numbers = {int(node.name): node for node in view.all("StaticText") if node.name.isdigit()}
    for node in view.all("graphics-symbol"):
        if digits := re.search(r"(\d+)\W*$", node.hint):
            numbers.setdefault(int(digits[1]), node)
    return click(numbers[min(numbers)]) if numbers else ""


# Choices.


@expert("click-option")
def click_option(view: View) -> str:
    name = view.objective.removeprefix("Select ").removesuffix(" and click Submit.")
    option = view.first("radio", name=name)
    return submit(view) if option is None or option.states["checked"] else click(option)


@expert("click-checkboxes", "click-checkboxes-large", "click-checkboxes-transfer")
def click_checkboxes(view: View) -> str:
    names = view.objective.removeprefix("Select ").removesuffix(" and click Submit.").split(", ")
    left = [box for box in view.all("checkbox") if box.name in names and not box.states["checked"]]
    return click(left[0]) if left else submit(view)


@expert("choose-list")
def choose_list(view: View) -> str:
    name = view.objective.removeprefix("Select ").removesuffix(" from the list and click Submit.")
    return fill(view.first("combobox"), name) or submit(view)


@expert("click-scroll-list")
def click_scroll_list(view: View) -> str:
    names = view.objective.removeprefix("Select ").removesuffix(" from the scroll list and click Submit.").split(", ")
    left = [option for option in view.all("option") if option.name in names and not option.states.get("selected")]
    return click(left[0]) if left else submit(view)


@expert("form-sequence-2")
def form_sequence_2(view: View) -> str:
    position, number, field = re.findall(r'(\d)\w\w radio.*"(-?\d+)".*(\d)\w\w textbox', view.objective)[0]
    radio = view.all("radio")[int(position) - 1]
    if not radio.states["checked"]:
        return click(radio)
    return fill(view.fields[int(field) - 1], number) or submit(view)


@expert("odd-or-even")
def odd_or_even(view: View) -> str:
    # A number's buttons stand before and after it. Which were pressed shows in nothing but the focus: in turn, then.
    wanted = []
    for i, node in enumerate(view.nodes):
        if node.role == "StaticText" and re.fullmatch(r"-?\d+", node.name):
            wanted.append(view.nodes[i - 1 if int(node.name) % 2 else i + 1])
    focused = next((i for i, node in enumerate(wanted) if node.states.get("focused")), -1)
    return click(wanted[focused + 1]) if focused + 1 < len(wanted) else submit(view)


@expert("buy-ticket")
def buy_ticket(view: View) -> str:
    key = {"cheapest": r"\$(\d+)", "most expensive": r"\$(\d+)"}
    best = None
    for words, pattern in key.items():
        if words in view.objective:
            tickets = [(int(m[1]), b) for b in view.all("button") if (m := re.search(pattern, b.name))]
            best = (min if words == "cheapest" else max)(tickets, key=lambda ticket: ticket[0])[1]
    if best is None:
        durations = [re.fullmatch(r"(\d+)h (\d+)m", text) for text in view.texts]
        minutes = [int(m[1]) * 60 + int(m[2]) for m in durations if m]
        pick = min(minutes) if "shortest" in view.objective else max(minutes)
        best = view.all("button")[minutes.index(pick)]
    return click(best)


# Mail and posts.


@expert("email-inbox-delete", "email-inbox-important", "email-inbox-noscroll", "email-inbox-star-reply")
def email_inbox(view: View) -> str:
    if "reply" in view.objective:
        return email_inbox_reply(view)
    if "forward" in view.objective:
        return email_inbox_forward(view)
    sender = re.search(r"email by (\w+)", view.objective)
    icon = "trash" if "trash" in view.objective else "star"
    mail = view.after(view.first("StaticText", name=sender[1])) if sender else view
    return click(mail.first("generic", hint=icon))


@expert("email-inbox-reply")
def email_inbox_reply(view: View) -> str:
    sender = re.search(r"email by (\w+)", view.objective)
    if send := view.first("generic", hint="send-reply"):
        return fill(view.fields[0], view.quoted[-1]) or click(send)
    if reply := view.first("StaticText", name="Reply"):
        return click(reply)
    return click(view.first("StaticText", name=sender[1])) if sender else ""


@expert("email-inbox-forward", "email-inbox")
def email_inbox_forward(view: View) -> str:
    if "forward" not in view.objective:
        return email_inbox(view)
    names = re.search(r"email by (\w+) and forward that email to (\w+)", view.objective)
    if names is None:
        return ""
    if send := view.first("generic", hint="send-forward"):
        return fill(view.fields[0], names[2]) or click(send)
    if forward := view.first("StaticText", name="Forward"):
        return click(forward)
    return click(view.first("StaticText", name=names[1]))
