// The list of episodes: filters, which stand in the address, and rows, of which only those in view are drawn.
"use strict";

const ROW_HEIGHT = 36;
const OUTCOMES = { success: "succeeded", failure: "failed", error: "error", none: "no verdict" };

const COLUMNS = [
  {
    name: "outcome",
    title: "",
    draw: (row) => html`<span class=${`dot ${row.outcome}`} title=${OUTCOMES[row.outcome]}></span>`,
  },
  { name: "item", title: "Task", draw: (row) => html`<${Shown} text=${row.item || `seed ${row.seed}`} />` },
  { name: "env", title: "Environment", draw: (row) => html`<${Shown} text=${shortEnv(row.env)} />` },
  { name: "category", title: "Category", draw: (row) => html`<${Shown} text=${row.category} />` },
  {
    name: "split",
    title: "Split",
    draw: (row) =>
      html`<span class=${row.evaluation ? "tag evaluation" : "tag"}><${Shown} text=${row.split || "-"} /></span>`,
  },
  { name: "total", title: "Return", number: true, draw: (row) => decimal(row.total) },
  { name: "turns", title: "Turns", number: true, draw: (row) => count(row.turns) },
  { name: "tokens", title: "Tokens", number: true, draw: (row) => count(row.tokens) },
  { name: "step", title: "Step", number: true, draw: (row) => count(row.step) },
  { name: "version", title: "Version", number: true, draw: (row) => (row.version < 0 ? "-" : count(row.version)) },
  { name: "end", title: "Ended by", draw: (row) => row.end.replace("_", " ") },
  { name: "runLabel", title: "Run", draw: (row) => html`<${Shown} text=${row.runLabel} />` },
];

// Choices: a row must have this value. Bounds: at least, at most.
const CHOICES = [
  { name: "run", title: "Run", of: (row) => row.runLabel },
  { name: "env", title: "Environment", of: (row) => shortEnv(row.env) },
  { name: "kind", title: "Played for", of: (row) => (row.evaluation ? "evaluation" : "training") },
  { name: "split", title: "Split", of: (row) => row.split },
  { name: "category", title: "Category", of: (row) => row.category },
  { name: "outcome", title: "Outcome", of: (row) => row.outcome, says: (value) => OUTCOMES[value] },
  { name: "end", title: "Ended by", of: (row) => row.end, says: (value) => value.replace("_", " ") },
];
const BOUNDS = [
  { name: "return", title: "Return", of: (row) => row.total },
  { name: "version", title: "Version", of: (row) => row.version },
];

function filterRows(rows, query, found) {
  const tests = [(row) => !row.isHidden];
  for (const { name, of } of CHOICES) if (query[name]) tests.push((row) => of(row) === query[name]);
  for (const { name, of } of BOUNDS) {
    const [low, high] = [query[`${name}_from`], query[`${name}_to`]];
    if (low && isNumber(+low)) tests.push((row) => of(row) >= +low);
    if (high && isNumber(+high)) tests.push((row) => of(row) <= +high);
  }
  if (query.item) tests.push((row) => row.item === query.item);
  if (query.text && found) tests.push((row) => found.has(row.id));
  return rows.filter((row) => tests.every((test) => test(row)));
}

function sortRows(rows, sort) {
  const column = COLUMNS.find(({ name }) => name === sort.replace("-", ""));
  if (!column) return rows.slice().reverse(); // the newest first
  const sign = sort.startsWith("-") ? -1 : 1;
  const compare = (a, b) => {
    const [x, y] = [a[column.name] ?? -Infinity, b[column.name] ?? -Infinity];
    if (typeof x === "string") return sign * x.localeCompare(y, "en", { numeric: true });
    return sign * (x - y);
  };
  return rows.slice().sort(compare);
}

function List({ query }) {
  const { rows, version, isComplete } = useStore();
  const text = useSettled(query.text || "", 250);
  // Asked again while the files are still read, and when a run has written more.
  const search = useAnswer(() => (text ? store.search(text) : null), `${text}:${text ? rows.length : 0}`);
  const shown = useMemo(
    () => sortRows(filterRows(rows, { ...query, text }, search.value), query.sort || ""),
    [version, JSON.stringify(query), text, search.value],
  );
  store.listed = shown;
  const set = (changes) => go([], { ...query, ...changes }, { replaces: true });
  const successes = shown.filter((row) => row.outcome === "success").length;
  const judged = shown.filter((row) => row.outcome === "success" || row.outcome === "failure").length;
  return html`
    <section class="list">
      <${Filters} query=${query} set=${set} />
      <p class="summary" aria-live="polite">
        <b id="num-shown">${count(shown.length)}</b> episodes${judged ? html`, <b>${decimal((100 * successes) / judged, 1)} %</b> succeeded` : ""}
        ${shown.length ? html`, mean return <b>${decimal(mean(shown.map((row) => row.total)))}</b>` : ""}
        ${isComplete ? "" : html` <span class="busy">reading files</span>`}
        ${text && search.isWaiting ? html` <span class="busy">searching</span>` : ""}
        ${Object.keys(query).length ? html` <button class="link" onClick=${() => go([], {}, { replaces: true })}>clear</button>` : ""}
      </p>
      <${Problem} text=${search.error} />
      <${Table} rows=${shown} sort=${query.sort || ""} setSort=${(sort) => set({ sort })} />
    </section>`;
}

function Filters({ query, set }) {
  const { rows, version } = useStore();
  const values = useMemo(() => {
    const found = Object.fromEntries(CHOICES.map(({ name }) => [name, new Set()]));
    for (const row of rows) for (const { name, of } of CHOICES) if (of(row)) found[name].add(of(row));
    return found;
  }, [version]);
  const choice = ({ name, title, says = (value) => value }) => {
    const known = [...values[name]].sort((a, b) => a.localeCompare(b, "en", { numeric: true }));
    if (known.length < 2 && !query[name]) return null;
    return html`<label>${title}
      <select name=${name} value=${query[name] || ""} onChange=${(event) => set({ [name]: event.target.value })}>
        <option value="">all</option>
        ${known.map((value) => html`<option value=${value} selected=${value === query[name]}><${Shown} text=${says(value)} /></option>`)}
      </select></label>`;
  };
  const bound = ({ name, title }) => html`<label class="bounds">${title}
    <span>${["from", "to"].map(
      (side) => html`<input
      name=${`${name}_${side}`} inputmode="decimal" size="4" placeholder=${side} aria-label=${`${title} ${side}`}
      value=${query[`${name}_${side}`] || ""} onInput=${(event) => set({ [`${name}_${side}`]: event.target.value })} />`,
    )}</span></label>`;
  return html`
    <form class="filters" onSubmit=${(event) => event.preventDefault()}>
      <label class="search">Text
        <input name="text" type="search" placeholder="in what was said  ( / )" value=${query.text || ""}
          onInput=${(event) => set({ text: event.target.value })} /></label>
      ${CHOICES.map(choice)} ${BOUNDS.map(bound)}
      ${
        query.item
          ? html`
        <label>Task <button type="button" class="chip" onClick=${() => set({ item: "" })}><${Shown} text=${query.item} /> \u00d7</button></label>`
          : ""
      }
    </form>`;
}

function Table({ rows, sort, setSort }) {
  const body = useRef(null);
  const [view, setView] = useState({ top: 0, height: 800 });
  const [chosen, setChosen] = useState(0);
  const at = Math.min(chosen, Math.max(rows.length - 1, 0));
  useLayoutEffect(() => {
    const measure = () => setView({ top: body.current.scrollTop, height: body.current.clientHeight });
    measure();
    window.addEventListener("resize", measure);
    return () => window.removeEventListener("resize", measure);
  }, []);
  const move = (to) => {
    const next = Math.max(0, Math.min(rows.length - 1, to));
    setChosen(next);
    body.current.focus({ preventScroll: true }); // Enter now means the chosen row
    const { scrollTop, clientHeight } = body.current;
    if (next * ROW_HEIGHT < scrollTop) body.current.scrollTop = next * ROW_HEIGHT;
    if ((next + 1) * ROW_HEIGHT > scrollTop + clientHeight)
      body.current.scrollTop = (next + 1) * ROW_HEIGHT - clientHeight;
  };
  const page = Math.floor(view.height / ROW_HEIGHT) - 1;
  useKeys({
    ArrowDown: () => move(at + 1),
    j: () => move(at + 1),
    ArrowUp: () => move(at - 1),
    k: () => move(at - 1),
    PageDown: () => move(at + page),
    PageUp: () => move(at - page),
    Home: () => move(0),
    End: () => move(rows.length - 1),
    Enter: () => rows[at] && go(["episode", rows[at].id]),
    "/": () => document.querySelector("input[name=text]").focus(),
  });
  const first = Math.max(0, Math.floor(view.top / ROW_HEIGHT) - 10);
  const last = Math.min(rows.length, Math.ceil((view.top + view.height) / ROW_HEIGHT) + 10);
  const header = ({ name, title, number }) => {
    const order = sort === name ? "ascending" : sort === `-${name}` ? "descending" : "none";
    const next = sort === `-${name}` ? name : sort === name ? "" : `-${name}`;
    return html`<span role="columnheader" class=${`c-${name} ${number ? "number" : ""}`} aria-sort=${order}>
      <button onClick=${() => setSort(next)} title="sort">${title || "\u25cf"}${order === "none" ? "" : order === "ascending" ? " \u2191" : " \u2193"}</button></span>`;
  };
  return html`
    <div class="table" role="table" aria-rowcount=${rows.length}>
      <div class="head row" role="row">${COLUMNS.map(header)}</div>
      <div class="body" tabIndex="-1" ref=${body} onScroll=${() => setView({ top: body.current.scrollTop, height: body.current.clientHeight })}>
        <div style=${{ height: `${rows.length * ROW_HEIGHT}px`, position: "relative" }}>
          ${rows.slice(first, last).map(
            (row, k) => html`
            <a key=${row.id} role="row" class=${`row ${first + k === at ? "chosen" : ""}`} href=${addressOf(["episode", row.id])}
              style=${{ top: `${(first + k) * ROW_HEIGHT}px` }} onClick=${() => setChosen(first + k)}>
              ${COLUMNS.map(({ name, number, draw }) => html`<span role="cell" class=${`c-${name} ${number ? "number" : ""}`}>${draw(row)}</span>`)}
            </a>`,
          )}
        </div>
        ${rows.length ? "" : html`<p class="empty">No episodes.</p>`}
      </div>
    </div>`;
}

// A value once it has not changed for a while.
function useSettled(value, milliseconds) {
  const [settled, set] = useState(value);
  useEffect(() => {
    const timer = setTimeout(() => set(value), milliseconds);
    return () => clearTimeout(timer);
  }, [value]);
  return settled;
}
