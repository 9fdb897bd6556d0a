// Where episodes come from: the server, which is asked again and again while runs go on, or this file itself.
"use strict";

const POLL_MS = 2000;
const MOST_CACHED = 200;

const store = {
  rows: [], // of all records, in the order of the index; see rllm_gym/viewer/rows.py
  runs: [],
  trials: [],
  damaged: [], // the first ones
  numDamaged: 0,
  isComplete: false,
  isLive: !document.getElementById("data"),
  numLeftOut: 0,
  version: 0, // goes up with every change
  problem: "",
  listed: [], // ids in the order in which the list shows them, for "next episode"
  _byId: new Map(),
  _episodes: new Map(),
  _listeners: new Set(),
  _generation: 0,
  _embedded: readEmbedded(), // a promise of what this file holds, or of null

  async start() {
    const embedded = await this._embedded;
    if (embedded) {
      this.numLeftOut = embedded.state.numLeftOut;
      this._take(embedded.state);
      return;
    }
    for (;;) {
      if (!document.hidden) {
        try {
          this._take(await getJson(`api/state?since=${this.rows.length}&generation=${this._generation}`));
        } catch (error) {
          this._say(`The server does not answer: ${error.message}`);
        }
      }
      await new Promise((resolve) => setTimeout(resolve, this.isComplete ? POLL_MS : 200));
    }
  },

  row(id) {
    return this._byId.get(id);
  },

  async episode(id) {
    const embedded = await this._embedded;
    if (embedded) {
      const found = embedded.episodes[id];
      if (!found) throw new Error("This file does not hold that episode.");
      return { ...found, texts: embedded.texts[found.textsOf] };
    }
    if (!this._episodes.has(id)) {
      if (this._episodes.size >= MOST_CACHED) this._episodes.delete(this._episodes.keys().next().value);
      const asked = getJson(`api/episodes/${encodeURIComponent(id)}`);
      this._episodes.set(id, asked);
      asked.catch(() => this._episodes.delete(id));
    }
    return this._episodes.get(id);
  },

  // Return the ids of the episodes whose messages contain a text, in any case.
  async search(text) {
    const embedded = await this._embedded;
    if (!embedded) {
      const numbers = await getJson(`api/search?text=${encodeURIComponent(text)}`);
      return new Set(numbers.map((number) => this.rows[number]?.id));
    }
    const wanted = text.toLowerCase();
    const says = ({ record }) => record.messages.some((m) => String(m.content).toLowerCase().includes(wanted));
    return new Set(
      Object.values(embedded.episodes)
        .filter(says)
        .map((episode) => episode.id),
    );
  },

  async curves() {
    return (await this._embedded)?.curves ?? getJson("api/curves");
  },

  // The rows of the same group: one task played several times by one policy.
  groupOf(row) {
    if (!row.group) return [row];
    const isMate = (other) =>
      other.trial === row.trial &&
      other.group === row.group &&
      other.env === row.env &&
      other.agent === row.agent &&
      other.evaluation === row.evaluation &&
      other.split === row.split && // which older files' keys lack
      other.step === row.step &&
      !other.isHidden;
    return this.rows.filter(isMate).sort((a, b) => a.member - b.member);
  },

  // The records of the other agents of the same episode.
  agentsOf(row) {
    return this.rows.filter(
      (r) => r.trial === row.trial && r.episode === row.episode && r.step === row.step && !r.isHidden,
    );
  },

  _take(state) {
    const isAnew = state.generation !== this._generation;
    if (isAnew) {
      this.rows = [];
      this._byId.clear();
      this._episodes.clear();
      this._generation = state.generation;
    }
    const hasNews =
      isAnew ||
      state.rows.length ||
      state.isComplete !== this.isComplete ||
      this.problem ||
      state.numDamaged !== this.numDamaged ||
      state.hidden.length !== (this._numHidden || 0);
    if (!hasNews) return;
    if (state.first > this.rows.length) return; // an answer to an older question
    for (const values of state.rows.slice(this.rows.length - state.first)) {
      const row = { number: this.rows.length, isHidden: false };
      state.columns.forEach((column, k) => (row[column] = values[k]));
      row.runLabel = state.runs[row.run].label;
      row.outcome = row.end === "error" ? "error" : row.success === null ? "none" : row.success ? "success" : "failure";
      this.rows.push(row);
      this._byId.set(row.id, row);
    }
    for (const number of state.hidden) if (this.rows[number]) this.rows[number].isHidden = true;
    this._numHidden = state.hidden.length;
    Object.assign(this, { runs: state.runs, trials: state.trials, damaged: state.damaged, numDamaged: state.numDamaged });
    this.isComplete = state.isComplete;
    this._say("");
  },

  _say(problem) {
    this.problem = problem;
    this.version += 1;
    for (const listener of this._listeners) listener();
  },
};

async function readEmbedded() {
  const data = document.getElementById("data");
  if (!data) return null;
  const packed = Uint8Array.from(atob(data.textContent), (char) => char.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  return JSON.parse(await new Response(stream).text());
}

async function getJson(path, options) {
  const response = await fetch(path, options);
  const answer = await response.json().catch(() => ({ error: `${response.status} ${response.statusText}` }));
  if (!response.ok) throw new Error(answer.error || response.statusText);
  return answer;
}

const postJson = (path, body, options = {}) =>
  getJson(path, {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(body),
    ...options,
  });

// Draws a component again whenever the store has changed.
function useStore() {
  const [, set] = useState(0);
  useEffect(() => {
    const listener = () => set(store.version);
    store._listeners.add(listener);
    listener();
    return () => store._listeners.delete(listener);
  }, []);
  return store;
}
