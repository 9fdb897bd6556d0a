// Two policies: the tasks that both have played, and one task of both, turn by turn.
"use strict";

// What counts as one policy: an evaluation, a run's evaluation after one train step, or all of a run's training.
function policyOf(row) {
  if (!row.evaluation) return `${row.runLabel}, training`;
  return row.step === null ? row.runLabel : `${row.runLabel}, evaluated after step ${row.step}`;
}

// Of evaluations, where there are two, the pair with the most tasks in common.
function usualPair(policies) {
  const isEvaluation = ([, rows]) => rows[0].evaluation;
  const all = [...policies];
  const entries = (all.filter(isEvaluation).length > 1 ? all.filter(isEvaluation) : all).slice(0, 20);
  let [best, most] = [[entries[0]?.[0], entries[1]?.[0]], -1];
  entries.forEach(([a, rowsA], k) => {
    const tasks = new Set(rowsA.map(taskOf));
    for (const [b, rowsB] of entries.slice(k + 1)) {
      const shared = new Set(rowsB.map(taskOf).filter((task) => tasks.has(task))).size;
      if (shared >= most) [best, most] = [[a, b], shared];
    }
  });
  return best;
}

const taskOf = (row) => `${row.env}\n${row.item || `seed ${row.seed}`}`;

function byTask(rows) {
  const found = new Map();
  for (const row of rows) {
    const task = taskOf(row);
    if (!found.has(task)) found.set(task, []);
    found.get(task).push(row);
  }
  return found;
}

function successRate(rows) {
  const judged = rows.filter((row) => row.outcome === "success" || row.outcome === "failure");
  return judged.length ? judged.filter((row) => row.outcome === "success").length / judged.length : null;
}

function Compare({ query }) {
  const { rows, version } = useStore();
  const policies = useMemo(() => {
    const found = new Map();
    for (const row of rows) {
      if (row.isHidden) continue;
      const name = policyOf(row);
      if (!found.has(name)) found.set(name, []);
      found.get(name).push(row);
    }
    return found;
  }, [version]);
  const names = [...policies.keys()];
  const usual = useMemo(() => usualPair(policies), [version]);
  const a = policies.has(query.a) ? query.a : usual[0];
  const b = policies.has(query.b) ? query.b : usual[1];
  const set = (changes) => go(["compare"], { a, b, ...query, ...changes }, { replaces: true });
  const tasks = useMemo(() => {
    const [ofA, ofB] = [byTask(policies.get(a) ?? []), byTask(policies.get(b) ?? [])];
    const shared = [...ofA.keys()]
      .filter((task) => ofB.has(task))
      .map((task) => {
        const [rateA, rateB] = [successRate(ofA.get(task)), successRate(ofB.get(task))];
        return {
          task,
          rowsA: ofA.get(task),
          rowsB: ofB.get(task),
          rateA,
          rateB,
          difference: (rateB ?? 0) - (rateA ?? 0),
        };
      });
    return shared.sort((x, y) => y.difference - x.difference || x.task.localeCompare(y.task, "en", { numeric: true }));
  }, [version, a, b]);
  const [turn, setTurn] = useState(0);
  useEffect(() => setTurn(0), [query.task]);
  useKeys({ ArrowRight: () => setTurn(turn + 1), ArrowLeft: () => setTurn(Math.max(0, turn - 1)) });
  const chosen = tasks.find(({ task }) => task === query.task);
  const total = (key) => decimal(100 * (mean(tasks.map((task) => task[key]).filter(isNumber)) ?? NaN), 1);
  const select = (side, value) => html`<label>${side.toUpperCase()}
    <select name=${side} class="wide" onChange=${(event) => set({ [side]: event.target.value })}>
      ${names.map((name) => html`<option value=${name} selected=${name === value}><${Shown} text=${name} /></option>`)}
    </select></label>`;
  if (names.length < 2)
    return html`<p class="empty">Two policies are compared where there are two: give several runs or evaluations.</p>`;
  return html`
    <section class="compare">
      <form class="filters">${select("a", a)} ${select("b", b)}</form>
      <p class="summary"><b id="num-tasks">${tasks.length}</b> tasks that both have played: A <b>${total("rateA")} %</b>, B <b>${total("rateB")} %</b>,
        B better on <b>${tasks.filter(({ difference }) => difference > 0).length}</b>, worse on <b>${tasks.filter(({ difference }) => difference < 0).length}</b>.</p>
      <div class=${chosen ? "tasks narrow" : "tasks"}>
        ${tasks.map(
          ({ task, rateA, rateB, difference }) => html`
          <button key=${task} class=${`task ${chosen?.task === task ? "on" : ""}`} onClick=${() => set({ task, ka: "", kb: "" })}>
            <span class="name"><${Shown} text=${task.split("\n")[1]} /> <small><${Shown} text=${shortEnv(task.split("\n")[0])} /></small></span>
            <${Rate} value=${rateA} /><${Rate} value=${rateB} /><span class=${`change ${difference > 0 ? "good" : difference < 0 ? "bad" : ""}`}>${difference ? signed(100 * difference, 0) : "="}</span>
          </button>`,
        )}
      </div>
      ${
        chosen
          ? html`<div class="two">
        <${Side} key=${`a${chosen.task}`} name="A" rows=${chosen.rowsA} number=${+query.ka || 0} choose=${(k) => set({ ka: String(k) })} turn=${turn} setTurn=${setTurn} />
        <${Side} key=${`b${chosen.task}`} name="B" rows=${chosen.rowsB} number=${+query.kb || 0} choose=${(k) => set({ kb: String(k) })} turn=${turn} setTurn=${setTurn} />
      </div>`
          : html`<p class="hint">Choose a task to see both play it.</p>`
      }
    </section>`;
}

const Rate = ({ value }) =>
  html`<span class="rate" title=${value === null ? "no verdict" : `${Math.round(100 * value)} %`}><span style=${{ width: `${100 * (value ?? 0)}%` }}></span></span>`;

// Both sides are at the same turn, as long as they have one.
function Side({ name, rows, number, choose, turn, setTurn }) {
  const row = rows[Math.min(number, rows.length - 1)];
  const { value, error } = useAnswer(() => store.episode(row.id), row.id);
  return html`
    <div class="side">
      <h2>${name} <a href=${addressOf(["episode", row.id])}><span class=${`dot ${row.outcome}`}></span> <${Shown} text=${row.item || `seed ${row.seed}`} /></a> <small>return ${decimal(row.total)}, ${row.end.replace("_", " ")}</small></h2>
      ${
        rows.length > 1
          ? html`
        <div class="segments">${rows.slice(0, 32).map(
          (other, k) => html`
        <button class=${other === row ? "on" : ""} onClick=${() => choose(k)}><span class=${`dot ${other.outcome}`}></span> ${k + 1}</button>`,
        )}</div>`
          : ""
      }
      <${Problem} text=${error} />
      ${
        value && value.id === row.id
          ? html`
        <${Replay} record=${value.record} turn=${Math.min(turn, Math.max(row.turns - 1, 0))} setTurn=${(to) => setTurn(Math.max(0, Math.min(row.turns - 1, to)))} />`
          : html`<p class="busy">loading</p>`
      }
    </div>`;
}
