// TextCraft: what is held, and the tree of recipes down from the goal.
"use strict";

const countedItems = (text) =>
  text
    .split(/,\s*/)
    .map((part) => /^(\d+) (.+)$/.exec(part.trim()))
    .filter(Boolean)
    .map(([, n, name]) => ({ n: +n, name }));
const itemName = (name) =>
  name
    .replace(/^minecraft:/, "")
    .replaceAll("_", " ")
    .trim();

function addItems(held, items, sign) {
  const next = new Map(held);
  for (const { n, name } of items) {
    const left = (next.get(name) || 0) + sign * n;
    if (left > 0) next.set(name, left);
    else next.delete(name);
  }
  return next;
}

scenes.push({
  title: "textcraft",
  matches: /TextCraft/,

  begin(task) {
    const recipes = [...task.matchAll(/^craft (\d+) (.+?) using (.+)$/gm)].map(([text, n, name, parts]) => ({
      text,
      n: +n,
      name,
      parts: countedItems(parts),
    }));
    const goal = /^Goal: craft (.+?)\.?$/m.exec(task)?.[1];
    return goal ? { goal, recipes, held: new Map(), used: new Map(), isDone: false } : null;
  },

  step(state, { command }, reply) {
    const got = /^Got (\d+) (.+)$/m.exec(reply);
    if (got) return { ...state, held: addItems(state.held, [{ n: +got[1], name: itemName(got[2]) }], 1) };
    const crafted = /^Crafted (\d+) (.+)$/m.exec(reply);
    if (crafted) {
      const name = itemName(crafted[2]);
      // A call of a function does not say "using"; its ingredients are the counted items at its end.
      const parts = countedItems(
        /using (.*)/.exec(command)?.[1] ?? command.replace(/^craft \d+ .*?(?= \d)/, "").trim(),
      );
      const held = addItems(addItems(state.held, parts, -1), [{ n: +crafted[1], name }], 1);
      const isMadeSo = (recipe) =>
        recipe.name === name &&
        parts.every((part) => recipe.parts.some((other) => other.n === part.n && part.name.endsWith(other.name)));
      const recipe = state.recipes.find(isMadeSo);
      const used = recipe ? new Map(state.used).set(name, recipe) : state.used;
      return { ...state, held, used, isDone: state.isDone || name === state.goal };
    }
    const listed = /^Inventory: (.*)$/m.exec(reply);
    if (listed)
      return {
        ...state,
        held: new Map([...listed[1].matchAll(/\[(.+?)\] \((\d+)\)/g)].map(([, name, n]) => [name, +n])),
      };
    return state;
  },

  offers(state) {
    const has = ({ n, name }) => [...state.held].some(([held, m]) => m >= n && held.endsWith(name));
    return ["inventory", ...state.recipes.filter(({ parts }) => parts.every(has)).map(({ text }) => text)];
  },

  draw({ state, act }) {
    return html`
      <h2>${state.isDone ? "\u2713 " : ""}<${Shown} text=${state.goal} /></h2>
      <h3>Inventory</h3>
      <ul class="items">${[...state.held].map(([name, n]) => html`<li><b>${n}</b> <${Shown} text=${name} /></li>`)}
        ${state.held.size ? "" : html`<li class="hint">empty</li>`}</ul>
      <h3>Recipe</h3>
      <ul class="tree"><${RecipeNode} state=${state} name=${state.goal} n=${1} above=${[]} act=${act} /></ul>`;
  },
});

const DEEPEST_RECIPE = 8;

function RecipeNode({ state, name, n, above, act }) {
  const ways = state.recipes.filter(
    (recipe) => recipe.name === name && !recipe.parts.some((part) => above.includes(part.name)),
  );
  const way =
    above.length < DEEPEST_RECIPE
      ? (state.used.get(name) ?? ways.find((other) => other.parts.some((part) => state.held.has(part.name))) ?? ways[0])
      : null;
  // A kind of items, like planks, is held where a member is, like oak planks.
  const held = [...state.held]
    .filter(([other]) => other === name || (!way && other.endsWith(` ${name}`)))
    .reduce((sum, [, m]) => sum + m, 0);
  const status =
    (state.isDone && name === state.goal) || held >= n ? "held" : state.used.has(name) ? "made" : "missing";
  const text = way ? way.text : `get ${n} ${name}`;
  const label = html`<b>${n}</b> <${Shown} text=${name} />`;
  return html`
    <li class=${status}>
      ${
        act
          ? html`
        <button class="node" title=${text} onClick=${() => act(text)}>${label}</button>`
          : html`<span class="node" title=${text}>${label}</span>`
      }
      ${held ? html` <span class="hint">have ${held}</span>` : ""}
      ${ways.length > 1 ? html` <span class="hint" title=${ways.map((w) => w.text).join("\n")}>${ways.length} ways</span>` : ""}
      ${
        way
          ? html`<ul>${way.parts.map(
              (part) => html`
        <${RecipeNode} state=${state} name=${part.name} n=${part.n} above=${[...above, name]} act=${act} />`,
            )}</ul>`
          : ""
      }
    </li>`;
}
