// A conversation: a tree of messages of which one path is shown. A message: {id, role, text, thought, calls, files, results, tokens,
// meta, children, chosen, parent}; the root is number 0 and says nothing.
import { writeHead, writeTalk } from "./store.js";

const kTitle = 60, kSearched = 200_000;  // letters
const kRoles = ["user", "assistant", "tool"];
const kVersion = 1;  // of a file

export const randomName = () => [...crypto.getRandomValues(new Uint32Array(4))].map((n) => n.toString(16).padStart(8, "0")).join("");

const message = (id, role, more) => ({ id, role, text: "", thought: "", calls: [], files: [], results: [], tokens: [], meta: {}, ...more, children: [], chosen: more.chosen ?? 0, parent: null });

export class Talk {
  constructor(head, nodes = []) {
    this.head = head;
    this.all = new Map([[0, message(0, "root", {})]]);
    for (const node of nodes) this.all.set(node.id, message(node.id, node.role, node));
    for (const { id, parent } of nodes) {
      if (id === 0) continue;
      const under = this.all.get(parent), node = this.all.get(id);
      if (!under) continue;
      node.parent = under;
      under.children.push(node);
    }
    this.root = this.all.get(0);
    this.next = Math.max(...this.all.keys()) + 1;
  }

  static begin(settings = {}) {
    const now = Date.now();
    return new Talk({ id: randomName(), title: "", named: false, created: now, changed: now, settings, text: "" });
  }

  path() {
    const nodes = [];
    for (let node = this.root.children[this.root.chosen]; node; node = node.children[node.chosen]) nodes.push(node);
    return nodes;
  }

  // The messages before a message, the first one first.
  before(node) {
    const nodes = [];
    for (let at = node.parent; at !== this.root; at = at.parent) nodes.unshift(at);
    return nodes;
  }

  add(parent, role, more = {}) {
    // Another page may add messages to the same conversation: their numbers differ, and later ones are larger.
    const id = Math.max(this.next, Date.now() * 1024 + Math.floor(Math.random() * 1024)), node = message(id, role, more);
    this.next = id + 1;
    node.parent = parent;
    parent.children.push(node);
    parent.chosen = parent.children.length - 1;
    this.all.set(node.id, node);
    return node;
  }

  get isEmpty() { return this.all.size === 1; }

  plain({ children, parent, ...node }) { return { ...node, talk: this.head.id, parent: parent ? parent.id : null }; }

  // Writes messages, and the head that lists are made of.
  save(...nodes) {
    const { head } = this, first = this.path().find((node) => node.role === "user");
    const [line] = (first?.text || first?.files[0]?.name || "").trim().split("\n");
    if (!head.named) head.title = line.length > kTitle ? `${line.slice(0, kTitle).trimEnd()}…` : line;
    head.text = [...this.all.values()].map((node) => node.text).join("\n").slice(0, kSearched).toLowerCase();
    return writeTalk(head, nodes.map((node) => this.plain(node)));
  }

  saveAll() { return this.save(...this.all.values()); }

  rename(title) {
    Object.assign(this.head, { title, named: true });
    return writeHead(this.head);
  }
}

// ---- Files ----

// Log-probabilities stay here: they are most of the bytes.
export function exported(talks) {
  const out = (talk) => ({ title: talk.head.title, created: talk.head.created, changed: talk.head.changed, settings: talk.head.settings,
    messages: [...talk.all.values()].map(({ children, parent, tokens, meta: { run, ...meta }, ...node }) => ({ ...node, meta, parent: parent ? parent.id : null })) });
  return JSON.stringify({ invar_conversations: kVersion, conversations: talks.map(out) }, null, 1);
}

const text = (value) => typeof value === "string" ? value : "";
const list = (value) => Array.isArray(value) ? value : [];
const object = (value) => value && typeof value === "object" && !Array.isArray(value) ? value : {};
const words = (content) => typeof content === "string" ? content : list(content).map((part) => text(part?.text)).join("\n");
const time = (value) => Number.isFinite(value) ? Math.min(Math.max(0, value), Date.now()) : Date.now();

// Keeps the values of a file that a conversation has, each of its kind.
function importedNode(value) {
  const meta = object(value.meta), kept = {};
  if (["string", "number"].includes(typeof meta.seed)) kept.seed = meta.seed;
  for (const name of ["fingerprint", "finish", "hash", "error", "request"]) if (meta[name] && typeof meta[name] === "string") kept[name] = meta[name];
  for (const name of ["tokens", "prompt", "first", "took", "drop"]) if (Number.isFinite(meta[name])) kept[name] = meta[name];
  if (meta.receipt && typeof meta.receipt === "object") kept.receipt = meta.receipt;
  kept.state = "done";
  return { id: value.id, parent: value.parent, chosen: Number.isInteger(value.chosen) ? value.chosen : 0, role: value.role, text: text(value.text), thought: text(value.thought),
    calls: list(value.calls).map((call) => ({ id: text(call?.id), name: text(call?.name), arguments: text(call?.arguments) })),
    files: list(value.files).map((file) => ({ name: text(file?.name), text: text(file?.text) })),
    results: list(value.results).map((one) => ({ id: text(one?.id), content: text(one?.content) })), meta: kept };
}

function importedTalk(value, at) {
  const where = `conversation ${at + 1}`, nodes = list(value.messages), seen = new Set([0]);
  for (const node of nodes) {
    if (node?.id === 0) continue;
    if (!Number.isSafeInteger(node?.id) || node.id < 1 || seen.has(node.id) || !seen.has(node.parent)) throw new Error(`${where}: expected messages with numbers, each behind the one that it answers, found ${JSON.stringify(node?.id ?? null)}`);
    if (!kRoles.includes(node.role)) throw new Error(`${where}: expected a role among ${kRoles.join(", ")}, found ${JSON.stringify(node.role ?? null)}`);
    seen.add(node.id);
  }
  const talk = Talk.begin({ system: "", tools: "", ...object(value.settings) });
  Object.assign(talk.head, { title: text(value.title).slice(0, 200), named: true, created: time(value.created), changed: time(value.changed) });
  return new Talk(talk.head, nodes.map((node) => node.id === 0 ? { id: 0, role: "root", chosen: Number.isInteger(node.chosen) ? node.chosen : 0 } : importedNode(node)));
}

// Messages as OpenAI's API has them.
function fromMessages(messages) {
  const system = messages.find((one) => one?.role === "system" || one?.role === "developer"), talk = Talk.begin({ system: system ? words(system.content) : "" });
  let at = talk.root;
  for (const one of messages) {
    if (one === system) continue;
    if (!kRoles.includes(one?.role)) throw new Error(`expected a role among system, ${kRoles.join(", ")}, found ${JSON.stringify(one?.role ?? null)}`);
    if (one.role === "tool") {
      const result = { id: text(one.tool_call_id), content: words(one.content) };
      if (at.role === "tool") at.results.push(result);
      else at = talk.add(at, "tool", { results: [result] });
      continue;
    }
    at = talk.add(at, one.role, { text: words(one.content), thought: text(one.reasoning_content), meta: { state: "done" },
      calls: list(one.tool_calls).map((call) => ({ id: text(call?.id), name: text(call?.function?.name), arguments: text(call?.function?.arguments) })) });
  }
  return talk;
}

// The conversations of a file: this page's own, or messages of a chat's request.
export function imported(file) {
  let value;
  try { value = JSON.parse(file); } catch { throw new Error("expected a file of JSON"); }
  if (value?.invar_conversations != null) {
    if (value.invar_conversations !== kVersion) throw new Error(`expected conversations of version ${kVersion}, found ${JSON.stringify(value.invar_conversations)}`);
    return list(value.conversations).map((one, at) => importedTalk(object(one), at));
  }
  const messages = Array.isArray(value) ? value : value?.messages;
  if (!Array.isArray(messages) || !messages.length) throw new Error("expected a file of this page's export, or a chat's messages");
  return [fromMessages(messages)];
}
