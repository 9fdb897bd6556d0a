// The frame of the page: navigation, theme, news, and which view stands in the address.
"use strict";

const VIEWS = [
  { path: [], title: "Episodes", key: "1" },
  { path: ["compare"], title: "Compare", key: "2" },
  { path: ["curves"], title: "Curves", key: "3" },
  { path: ["hub"], title: "Hub", key: "4" },
];

const themeListeners = new Set();

function useTheme() {
  const [theme, set] = useState(document.documentElement.dataset.theme || "");
  useEffect(() => {
    themeListeners.add(set);
    return () => themeListeners.delete(set);
  }, []);
  return theme;
}

function setTheme(theme) {
  if (theme) document.documentElement.dataset.theme = theme;
  else delete document.documentElement.dataset.theme;
  for (const listener of themeListeners) listener(theme);
}

function App() {
  const { path, query } = useAddress();
  const { rows, runs, problem, damaged, numDamaged, isLive, isComplete, numLeftOut } = useStore();
  const [theme, keepTheme] = useStored("theme", "");
  const [hasHelp, setHelp] = useState(false);
  useEffect(() => setTheme(theme), [theme]);
  const [view, ...rest] = path;
  if (!view) lastListQuery = query;
  const openView = (index) => go(VIEWS[index].path, index === 0 ? lastListQuery : {});
  useKeys({
    1: () => openView(0),
    2: () => openView(1),
    3: () => openView(2),
    4: () => openView(3),
    "?": () => setHelp(!hasHelp),
  });
  const shown = rows.length - rows.filter(({ isHidden }) => isHidden).length;
  useEffect(() => {
    document.title = `${
      runs
        .map(({ label }) => label)
        .slice(0, 3)
        .join(", ") || "hub"
    } - rllm_gym`;
  }, [runs.length]);
  const isHubOnly = isComplete && !rows.length && !runs.length && isLive;
  const isDark = theme ? theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  return html`
    <header class="top">
      <a class="logo" href="#/">rllm_gym</a>
      <nav>${VIEWS.filter(({ title }) => isLive || title !== "Hub").map(
        ({ path: [name], title, key }) => html`
        <a class=${(view === "episode" ? undefined : view) === name ? "on" : ""} title=${key} href=${name ? addressOf([name]) : addressOf([], lastListQuery)}>${title}</a>`,
      )}</nav>
      <span class="news" title=${isLive ? "The list grows while runs write." : "A file: nothing comes."}>
        ${
          isLive
            ? html`
          <span class=${problem ? "lamp bad" : "lamp"}></span>`
            : ""
        } ${count(shown)} episodes${numLeftOut ? html` <small>(${count(numLeftOut)} left out)</small>` : ""}</span>
      <button class="icon" onClick=${() => keepTheme(isDark ? "light" : "dark")} title="Light or dark" aria-label="Light or dark">${isDark ? "\u2600" : "\u263e"}</button>
      <button class="icon" onClick=${() => setHelp(!hasHelp)} title="Keys" aria-label="Keys">?</button>
    </header>
    ${hasHelp ? html`<${Keys} close=${() => setHelp(false)} />` : ""}
    <main>
      <${Problem} text=${problem} />
      ${
        damaged.length
          ? html`<details class="note"><summary>${numDamaged} damaged records are left out</summary>${damaged.map(
              (text) => html`
        <p><${Shown} text=${text} /></p>`,
            )}</details>`
          : ""
      }
      <${Guard} key=${path.slice(0, 2).join("/")} address=${path.join("/")} what="This view">${
        view === "episode"
          ? html`<${EpisodePage} id=${rest[0]} turn=${rest[1]} tab=${rest[2]} />`
          : view === "compare"
            ? html`<${Compare} query=${query} />`
            : view === "curves"
              ? html`<${Curves} query=${query} />`
              : view === "hub"
                ? html`<${HubPage} env=${rest[0]} />`
                : isHubOnly
                  ? html`<p class="empty">No run is shown: <a href="#/hub">play an environment</a>, or give <code>rllm-gym view</code> a run.</p>`
                  : html`<${List} query=${query} />`
      }<//>
    </main>`;
}

const KEYS = [
  ["1 2 3 4", "episodes, compare, curves, hub"],
  ["\u2191 \u2193  j k", "choose an episode"],
  ["Enter", "open it"],
  ["/", "search"],
  ["\u2190 \u2192", "turn by turn"],
  ["n p", "next and previous episode"],
  ["r t g d", "replay, tokens, group, details"],
  ["Esc", "back to the list"],
];

function Keys({ close }) {
  useKeys({ Escape: close });
  return html`<div class="keys" role="dialog" aria-label="Keys"><dl>${KEYS.map(
    ([keys, what]) => html`
    <div><dt><kbd>${keys}</kbd></dt><dd>${what}</dd></div>`,
  )}</dl><button onClick=${close}>close</button></div>`;
}

render(html`<${App} />`, document.getElementById("app"));
store.start();
