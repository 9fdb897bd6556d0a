"use strict";
// What pages do by themselves: suggestions as one types, lists that grow as one scrolls and that are sorted and
// filtered here, dialogs, and parts of a form that are added.

// XMLHttpRequest rather than fetch: its end comes after what follows `await ask(...)`, so that whoever waits for it
// finds the page as it will be.
const ask = (url) => new Promise((resolve, reject) => {
  const request = new XMLHttpRequest();
  request.onload = () => resolve(request.responseText);
  request.onerror = reject;
  request.open("GET", url);
  request.send();
});

function suggest(box) {
  const input = box.querySelector("[role=combobox]");
  const key = box.querySelector("[type=hidden]");
  const list = box.querySelector("[role=listbox]");
  let isAsking = false;
  const close = () => { list.hidden = true; list.replaceChildren(); input.setAttribute("aria-expanded", "false"); };
  const choose = (item) => {
    if (box.dataset.go) { location.href = box.dataset.go + item.slug; return; }
    input.value = item.name;
    key.value = item.slug;
    close();
  };
  const show = (items) => {
    close();
    for (const item of items) {
      const option = document.createElement("li");
      option.setAttribute("role", "option");
      option.textContent = item.name;
      option.addEventListener("mousedown", (event) => { event.preventDefault(); choose(item); });
      list.append(option);
    }
    list.hidden = !items.length;
    input.setAttribute("aria-expanded", String(!list.hidden));
  };
  input.addEventListener("input", async () => {
    if (key) key.value = "";
    if (isAsking) return;  // the loop below asks once more
    isAsking = true;
    let asked, items;
    do {
      asked = input.value;
      items = JSON.parse(await ask("/api/suggest?q=" + encodeURIComponent(asked)));
    } while (asked !== input.value);
    isAsking = false;
    show(items);
  });
  input.addEventListener("blur", close);
}

function grow(table) {
  const body = table.tBodies[0];
  const more = document.getElementById("more");
  const total = Number(table.dataset.total);
  const batch = body.rows.length;
  const rows = [...body.rows];  // those that have come
  let chosen = rows;  // those that the filter leaves, in their order
  let last = Promise.resolve();  // one thing after another
  const load = async (all) => {
    if (rows.length >= total) return;
    const query = new URLSearchParams(location.search);
    query.set("offset", rows.length);
    if (all) query.set("all", "1");
    const part = document.createElement("template");
    part.innerHTML = await ask(`${location.pathname}?${query}`);
    rows.push(...part.content.children);
  };
  const show = (count) => {
    body.replaceChildren(...chosen.slice(0, count));
    more.hidden = chosen.length <= count && rows.length >= total;
  };
  const change = (how) => {
    last = last.then(() => load(true)).then(() => { how(); show(batch); scrollTo({top: 0, behavior: "instant"}); });
  };
  addEventListener("scroll", () => {
    if (innerHeight + scrollY < document.documentElement.scrollHeight - 200) return;
    last = last.then(async () => {
      const count = body.rows.length;
      if (count === rows.length) await load(false);
      body.append(...chosen.slice(count, count + batch));
      more.hidden = body.rows.length >= chosen.length && rows.length >= total;
    });
  });
  for (const button of table.querySelectorAll("[data-sort]")) {
    const head = button.closest("th");
    const isNumber = button.dataset.sort === "number";
    const value = (row) => {
      const text = row.cells[head.cellIndex].textContent;
      return isNumber ? Number(text.replace(/[^\d.-]/g, "")) : text;
    };
    // Numbers begin with the largest, texts with A; once more turns it round.
    button.addEventListener("click", () => change(() => {
      const isRising = head.ariaSort ? head.ariaSort === "descending" : !isNumber;
      for (const other of table.querySelectorAll("th")) other.ariaSort = null;
      head.ariaSort = isRising ? "ascending" : "descending";
      const sign = isRising ? 1 : -1;
      rows.sort((a, b) => sign * ((value(a) > value(b)) - (value(a) < value(b))));
      chosen = chosen === rows ? rows : rows.filter((row) => chosen.includes(row));
    }));
  }
  const filter = document.getElementById("filter");
  if (filter) {
    filter.addEventListener("input", () => change(() => {
      const words = filter.value.trim().toLowerCase();
      chosen = rows.filter((row) => row.textContent.toLowerCase().includes(words));
    }));
  }
}

// Buttons may come with the rows of a list, hence one listener for all.
document.addEventListener("click", async (event) => {
  const button = event.target.closest("button");
  if (!button) return;
  const {opens, holds, adds} = button.dataset;
  if (opens) {
    const dialog = document.getElementById(opens);
    if (holds) dialog.innerHTML = await ask(holds);
    dialog.showModal();
  } else if ("closes" in button.dataset) {
    button.closest("dialog").close();
  } else if (adds) {
    add(document.getElementById(adds));
  }
});

// Adds what a template holds before it; labels and ids end with a number.
function add(template) {
  const parts = template.content.cloneNode(true);
  const number = Number(template.dataset.next);
  template.dataset.next = number + 1;
  for (const label of parts.querySelectorAll("label")) {
    parts.getElementById(label.htmlFor).id = label.htmlFor = `${label.htmlFor}-${number}`;
    label.textContent += ` ${number}`;
    label.parentElement.querySelector("[role=listbox]")?.setAttribute("aria-label", `${label.textContent}: suggestions`);
  }
  parts.querySelectorAll(".suggests").forEach(suggest);
  template.before(parts);
}

document.querySelectorAll(".suggests").forEach(suggest);
document.querySelectorAll("#list").forEach(grow);
