// Text that models and environments wrote. It is hostile: it only ever becomes text nodes, and what cannot be seen in
// it is spelt out.
"use strict";

// Control characters but tab and newline, characters that change the direction or have no width, halves of pairs.
const UNSEEN =
  /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff\u{e0000}-\u{e007f}]/gu;

function visibleParts(text) {
  const parts = [];
  let end = 0;
  for (const match of text.matchAll(UNSEEN)) {
    if (match.index > end) parts.push(text.slice(end, match.index));
    const code = match[0].codePointAt(0).toString(16).toUpperCase().padStart(4, "0");
    parts.push(html`<span class="unseen" title=${`U+${code}`}>${code}</span>`);
    end = match.index + match[0].length;
  }
  parts.push(text.slice(end));
  return parts;
}

// Text with every character shown, and perhaps the places marked where `mark` stands.
function Shown({ text, mark = "" }) {
  const said = String(text ?? "");
  if (!mark) return visibleParts(said);
  const parts = [];
  const folded = said.toLowerCase();
  const wanted = mark.toLowerCase();
  let end = 0;
  for (let at = folded.indexOf(wanted); at >= 0 && folded.length === said.length; at = folded.indexOf(wanted, end)) {
    parts.push(...visibleParts(said.slice(end, at)));
    end = at + wanted.length;
    parts.push(html`<mark>${visibleParts(said.slice(at, end))}</mark>`);
  }
  parts.push(...visibleParts(said.slice(end)));
  return parts;
}

// Return what an agent thought and what it did, in whichever form it wrote; `command` is the action in plain words, for
// scenes: `go to kitchen` of {"name": "go_to", "arguments": {"place": "kitchen"}} and of go_to(place="kitchen").
function splitTurn(text) {
  const tagged = /^\s*<think>([\s\S]*?)(?:<\/think>|$)([\s\S]*)$/.exec(text);
  if (tagged) {
    const rest = splitTurn(tagged[2]);
    return { ...rest, thought: [tagged[1].trim(), rest.thought].filter(Boolean).join("\n\n") };
  }
  const said = (thought, action) => ({ thought: thought.trim(), action: action.trim(), command: action.trim() });
  const wrapped =
    /<tool_call>\s*([\s\S]*?)\s*(?:<\/tool_call>|$)/.exec(text) ?? /```(?:\w+)?\n([\s\S]*?)(?:```|$)/.exec(text);
  const body = wrapped ? wrapped[1] : text;
  const call = readJsonCall(body) ?? readCodeCall(body);
  if (call)
    return {
      ...call,
      thought: [wrapped ? text.slice(0, wrapped.index).trim() : "", call.thought].filter(Boolean).join("\n\n"),
    };
  const at = text.lastIndexOf("Action:");
  if (at >= 0) return said(stripThought(text.slice(0, at)), text.slice(at + 7));
  if (wrapped) return said(text.slice(0, wrapped.index), wrapped[1]);
  return /^\s*Thought:/.test(text) ? said(stripThought(text), "") : said("", text);
}

function readJsonCall(text) {
  try {
    const { thought = "", name, arguments: values = {} } = JSON.parse(text);
    if (typeof name !== "string" || typeof values !== "object" || values === null) return null;
    const shown = Object.entries(values).map(([key, value]) => `${key}=${JSON.stringify(value)}`);
    return {
      thought: String(thought),
      action: `${name}(${shown.join(", ")})`,
      command: inWords(name, Object.values(values)),
    };
  } catch {
    return null;
  }
}

// A call below comments, as in "# I need wood\nget(count=2, item=\"oak logs\")".
function readCodeCall(text) {
  const code = /^((?:\s*#[^\n]*\n)*)\s*(\w+)\(([^\n]*)\)\s*$/.exec(text);
  if (!code) return null;
  const values = code[3].matchAll(
    /"((?:[^"\\]|\\.)*)"|'((?:[^'\\]|\\.)*)'|(?<==\s*|^\s*|,\s*)([-\w.]+)(?=\s*(?:,|$))/g,
  );
  const command = inWords(
    code[2],
    [...values].map((match) => match[1] ?? match[2] ?? match[3]),
  );
  return { thought: code[1].replace(/^\s*#\s?/gm, "").trim(), action: `${code[2]}(${code[3]})`, command };
}

const inWords = (name, values) => [name.replaceAll("_", " "), ...values.map(String)].join(" ");

const stripThought = (text) => text.trim().replace(/^Thought:\s*/, "");

// Return a conversation as {opening: messages, turns: [{text, thought, action, replies: messages}]}.
function turnsOf(record) {
  const opening = [];
  const turns = [];
  for (const message of record.messages) {
    if (message.role === "assistant") {
      const text = String(message.content ?? "");
      turns.push({ text, ...splitTurn(text), replies: [] });
    } else if (turns.length) {
      turns[turns.length - 1].replies.push(message);
    } else {
      opening.push(message);
    }
  }
  return { opening, turns };
}
