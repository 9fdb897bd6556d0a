// Web pages (MiniWoB, WebArena): the tree of elements as a wireframe, the element that the action means marked.
"use strict";

const ELEMENT = /^(\t*)\[(\d+)\] (\S+) '(.*?)'(?= |$)(.*)$/;

function readPage(text) {
  const elements = text
    .split("\n")
    .map((line) => ELEMENT.exec(line))
    .filter(Boolean)
    .map(([, tabs, id, role, name, rest]) => ({
      depth: tabs.length,
      id,
      role,
      name,
      value: /value: '(.*)'/.exec(rest)?.[1] ?? "",
      hint: /hint: '(.*?)'/.exec(rest)?.[1] ?? "",
      rest: rest.trim(),
    }));
  const of = (key) => new RegExp(`^${key}: (.*)$`, "m").exec(text)?.[1] ?? "";
  return elements.length || of("OBJECTIVE")
    ? { objective: of("OBJECTIVE"), elements, url: of("URL"), tabs: of("TABS"), error: of("ERROR") }
    : null;
}

scenes.push({
  title: "web",
  matches: /MiniWoB|WebArena/,
  when: "before", // where what is clicked can be seen
  begin: readPage,
  step: (state, said, reply) => readPage(reply) ?? state,
  offers: () => [],

  draw({ state, said, act }) {
    const target = said ? /\[(\d+)\]|^\w+ (\d+)/.exec(said.command)?.slice(1).find(Boolean) : null;
    return html`
      <h2><${Shown} text=${state.objective} /></h2>
      <p class="address"><${Shown} text=${state.url} /></p>
      ${state.error ? html`<p class="problem"><${Shown} text=${state.error} /></p>` : ""}
      <div class="page">${state.elements.map((element) => html`<${Element} ...${element} isTarget=${element.id === target} act=${act} />`)}</div>`;
  },
});

function Element({ depth, id, role, name, value, hint, rest, isTarget, act }) {
  const isField = /textbox|searchbox|combobox|spinbutton|Date|textarea/i.test(role);
  const isPlain = role === "StaticText" || role === "heading";
  const look = /^(link|button|heading|StaticText|checkbox|radio|tab|option)$/.test(role)
    ? role
    : /clickable: True/.test(rest)
      ? "button"
      : "box";
  const text = act && (isField ? `type [${id}] [] [0]` : `click [${id}]`);
  const body = html`
    <span class="id">${id}</span>
    ${
      isField
        ? html`
      <span class="field"><${Shown} text=${value || name || role} /></span>`
        : html`<span class=${`el ${look}`}><${Shown} text=${name || hint || (isPlain ? "" : role)} /></span>`
    }
    ${
      /checked: true|selected: true|focused: true|expanded: true/.test(rest) && depth
        ? html`
      <span class="hint"><${Shown} text=${rest} /></span>`
        : ""
    }`;
  const style = { paddingLeft: `${Math.min(depth, 12) * 14}px` };
  return act
    ? html`<div style=${style} class="line"><button class="node" title=${text} onClick=${() => act(text)}>${body}</button></div>`
    : html`<div style=${style} class=${`line ${isTarget ? "target" : ""}`} title=${`${role} ${rest}`}>${body}</div>`;
}
