// What every script here uses: Preact, hypertext by htm, and small helpers for addresses, numbers and keys.
"use strict";

const { h, render, Fragment } = preact;
const { useState, useEffect, useLayoutEffect, useMemo, useRef } = preactHooks;
const html = htm.bind(h);

// --- the address: "#/episode/1a2b/3?text=oak" is {path: ["episode", "1a2b", "3"], query: {text: "oak"}} ---

function readAddress() {
  const [path, query] = location.hash.replace(/^#\/?/, "").split("?");
  return {
    path: path.split("/").filter(Boolean).map(decodeURIComponent),
    query: Object.fromEntries(new URLSearchParams(query || "")),
  };
}

function addressOf(path, query = {}) {
  const kept = Object.entries(query).filter(([, value]) => value !== "" && value != null);
  const text = new URLSearchParams(kept).toString();
  return `#/${path.map(encodeURIComponent).join("/")}${text ? `?${text}` : ""}`;
}

function go(path, query = {}, { replaces = false } = {}) {
  const address = addressOf(path, query);
  if (replaces) history.replaceState(null, "", address);
  else history.pushState(null, "", address);
  window.dispatchEvent(new Event("addresschange"));
}

function useAddress() {
  const [address, set] = useState(readAddress);
  useEffect(() => {
    const read = () => set(readAddress());
    window.addEventListener("hashchange", read);
    window.addEventListener("popstate", read);
    window.addEventListener("addresschange", read);
    return () => {
      window.removeEventListener("hashchange", read);
      window.removeEventListener("popstate", read);
      window.removeEventListener("addresschange", read);
    };
  }, []);
  return address;
}

// --- keys ---

// Calls handlers[key] for keys that are pressed outside of fields, from the moment that a view is there.
function useKeys(handlers) {
  const latest = useRef(handlers);
  latest.current = handlers;
  useLayoutEffect(() => {
    const press = (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      if (event.target.closest?.("input, select, textarea")) return;
      if (event.key === "Enter" && event.target.closest?.("a, button, summary")) return;
      const handler = latest.current[event.key];
      if (handler) {
        event.preventDefault();
        handler(event);
      }
    };
    window.addEventListener("keydown", press);
    return () => window.removeEventListener("keydown", press);
  }, []);
}

// --- numbers and names ---

const isNumber = (value) => typeof value === "number" && Number.isFinite(value);
const count = (value) => (isNumber(value) ? value.toLocaleString("en-US") : "-");
const decimal = (value, digits = 3) => (isNumber(value) ? String(+value.toFixed(digits)) : "-");
const precise = (value) =>
  isNumber(value)
    ? value !== 0 && Math.abs(value) < 1e-3
      ? value.toExponential(1)
      : String(+value.toPrecision(4))
    : "-";
const signed = (value, digits = 3) => (isNumber(value) ? (value > 0 ? "+" : "") + decimal(value, digits) : "-");
const mean = (values) => (values.length ? values.reduce((sum, value) => sum + value, 0) / values.length : null);
const shortEnv = (id) => id.replace(/^.*[:/]/, "");

// A promise's result in a component; `key` says when to ask again.
function useAnswer(ask, key) {
  const [answer, set] = useState({ key: undefined });
  useEffect(() => {
    let isCurrent = true;
    Promise.resolve()
      .then(ask)
      .then(
        (value) => isCurrent && set({ key, value }),
        (error) => isCurrent && set({ key, error: String(error.message || error) }),
      );
    return () => (isCurrent = false);
  }, [key]);
  return answer.key === key ? answer : { isWaiting: true, value: answer.value };
}

// Draws what is inside it, or says that it cannot, until the address changes.
class Guard extends preact.Component {
  constructor() {
    super();
    this.state = { error: null };
  }

  static getDerivedStateFromError(error) {
    return { error };
  }

  componentDidCatch(error) {
    console.error(error);
  }

  componentDidUpdate(previous) {
    if (this.state.error && previous.address !== this.props.address) this.setState({ error: null });
  }

  render({ what, children }, { error }) {
    return error ? html`<p class="problem">${what} cannot be drawn: ${String(error)}</p>` : children;
  }
}

function Problem({ text }) {
  return text ? html`<p class="problem" role="alert"><${Shown} text=${text} /></p>` : null;
}

function useStored(name, initial) {
  const [value, set] = useState(() => {
    try {
      return localStorage.getItem(name) ?? initial;
    } catch {
      return initial; // a page opened from a file may have no storage
    }
  });
  return [
    value,
    (next) => {
      set(next);
      try {
        localStorage.setItem(name, next);
      } catch {
        // kept for this visit alone
      }
    },
  ];
}
