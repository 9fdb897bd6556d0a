"use strict";
// Suggestions as one types, lists that grow as one scrolls and are sorted here, dialogs, and stops of a route.

function suggest(box) {
  const input = box.querySelector("[role=combobox]");
  const key = box.querySelector("[type=hidden]");
  const list = box.querySelector("[role=listbox]");
  let asked = 0;
  const close = () => { list.hidden = true; list.replaceChildren(); input.setAttribute("aria-expanded", "false"); };
  const choose = (place) => {
    if (box.dataset.go) { location.href = box.dataset.go + place.slug; return; }
    input.value = place.name;
    key.value = place.slug;
    close();
  };
  input.addEventListener("input", async () => {
    if (key) key.value = "";
    const mine = ++asked;
    const places = await (await fetch("/api/suggest?q=" + encodeURIComponent(input.value))).json();
    if (mine !== asked) return;  // an answer that was overtaken
    close();
    for (const place of places) {
      const option = document.createElement("li");
      option.setAttribute("role", "option");
      option.textContent = place.name;
      option.addEventListener("mousedown", (event) => { event.preventDefault(); choose(place); });
      list.append(option);
    }
    list.hidden = !places.length;
    input.setAttribute("aria-expanded", String(!list.hidden));
  });
  input.addEventListener("blur", close);
}

function grow(table) {
  const body = table.tBodies[0];
  const more = document.getElementById("more");
  const query = table.dataset.query ? table.dataset.query + "&" : "";
  let isAsking = false;
  const load = async (all) => {
    if (isAsking || body.rows.length >= Number(table.dataset.total)) return;
    isAsking = true;
    const rows = await (await fetch(`/api/places?${query}offset=${body.rows.length}${all ? "&all" : ""}`)).json();
    for (const row of rows) {
      const line = body.insertRow();
      const link = document.createElement("a");
      link.href = "/place/" + row.slug;
      link.textContent = row.name;
      line.insertCell().append(link);
      for (const cell of [row.kind, row.street, row.rating.toFixed(1)]) line.insertCell().textContent = cell;
    }
    more.hidden = body.rows.length >= Number(table.dataset.total);
    isAsking = false;
  };
  addEventListener("scroll", () => {
    if (innerHeight + scrollY >= document.documentElement.scrollHeight - 200) load(false);
  });
  for (const button of table.querySelectorAll("[data-sort]")) {
    button.addEventListener("click", async () => {
      await load(true);
      const isRating = button.dataset.sort === "rating";
      const value = (row) => isRating ? -Number(row.cells[3].textContent) : row.cells[0].textContent;
      const rows = [...body.rows].sort((a, b) => (value(a) > value(b)) - (value(a) < value(b)));
      body.append(...rows);
    });
  }
}

document.querySelectorAll(".suggests").forEach(suggest);
document.querySelectorAll("#places").forEach(grow);
for (const button of document.querySelectorAll("[data-opens]")) {
  button.addEventListener("click", () => document.getElementById(button.dataset.opens).showModal());
}
for (const button of document.querySelectorAll("[data-closes]")) {
  button.addEventListener("click", () => button.closest("dialog").close());
}
for (const button of document.querySelectorAll("[data-adds]")) {
  button.addEventListener("click", () => {
    const stop = document.getElementById(button.dataset.adds).content.cloneNode(true).firstElementChild;
    const number = document.querySelectorAll("[name=via]").length + 1;
    stop.querySelector("label").textContent = `Stop ${number}`;
    stop.querySelector("label").htmlFor = stop.querySelector("input").id = `via-${number}`;
    stop.querySelector("[role=listbox]").setAttribute("aria-label", `Stop ${number}: suggestions`);
    document.getElementById("to").closest(".suggests").before(stop);
    suggest(stop);
  });
}
