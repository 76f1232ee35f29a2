// The chat: a tree of messages of which one path is shown. Editing a message or asking again makes a branch.
import { $, copy, el, number } from "./dom.js";
import { server, stream } from "./api.js";
import { TokenView } from "./tokens.js";

const kStore = "chat-1";
const kFrame = 40;                       // milliseconds of text that are shown at once, or more:
const kShare = 0.1;                      // of the time may go to laying text out
let root = { children: [], chosen: 0 };  // a node: {role, text, tokens, meta, children, chosen, parent}
let running = null;                      // {controller, node}
const views = new Map();                 // of nodes that are shown

const kFields = ["temperature", "seed", "top_p", "top_k", "min_p", "max_tokens", "top_logprobs"];

function path() {
  const nodes = [];
  for (let node = root.children[root.chosen]; node; node = node.children[node.chosen]) nodes.push(node);
  return nodes;
}

function add(parent, role, text) {
  const node = { role, text, tokens: [], meta: {}, children: [], chosen: 0, parent };
  parent.children.push(node);
  parent.chosen = parent.children.length - 1;
  return node;
}

function store() {
  const plain = (node) => ({ ...node, parent: undefined, children: node.children.map(plain) });
  try { sessionStorage.setItem(kStore, JSON.stringify(plain(root))); } catch { /* too long to keep */ }
}

function restore() {
  const link = (node) => { for (const child of node.children) { child.parent = node; link(child); } return node; };
  try { root = link(JSON.parse(sessionStorage.getItem(kStore)) ?? root); } catch { /* of another version */ }
}

// ---- Requests ----

function requestFor(node, seed) {
  const before = [];
  for (let at = node.parent; at !== root; at = at.parent) before.unshift({ role: at.role, content: at.text });
  const body = { model: $("model").value, stream_options: { include_usage: true }, logits_hash: true };
  for (const name of ["temperature", "top_p", "top_k", "min_p", "max_tokens"])
    if (number(name) != null) body[name] = number(name);
  const wanted = seed ?? ($("seed").value.trim() || null);
  if (wanted != null) body.seed = Number(wanted);
  const stops = $("stops").value.split("|").filter(Boolean);
  if (stops.length) body.stop = stops;
  if (server.engine?.receipts) body.receipt = true;
  const plain = $("plain").checked;
  if ($("logprobs").checked) {
    const top = number("top_logprobs") ?? 0;
    if (plain) body.logprobs = top;
    else Object.assign(body, { logprobs: true, top_logprobs: top });
  }
  if (plain) {
    body.max_tokens ??= 256;
    return ["/v1/completions", { ...body, prompt: before.map((message) => message.content).join("\n") }];
  }
  const system = $("system").value.trim();
  return ["/v1/chat/completions", { ...body, messages: system ? [{ role: "system", content: system }, ...before] : before }];
}

function tokensOf(logprobs) {
  if (logprobs?.content) return logprobs.content.map((t) => ({ text: t.token, logprob: t.logprob, top: t.top_logprobs.map((o) => [o.token, o.logprob]) }));
  return (logprobs?.tokens ?? []).map((text, i) => ({ text, logprob: logprobs.token_logprobs[i], top: Object.entries(logprobs.top_logprobs[i] ?? {}) }));
}

async function answer(node, seed) {
  if (running) running.controller.abort();
  const controller = new AbortController();
  const [where, body] = requestFor(node, seed);
  const run = running = { controller, node, text: "", tokens: [], timer: 0, pause: kFrame };
  const began = performance.now();
  Object.assign(node.meta, { request: JSON.stringify({ ...body, seed: undefined }), state: "waiting" });
  show();
  const flush = () => {
    const start = performance.now();
    views.get(node)?.append(run.text, run.tokens);
    Object.assign(run, { text: "", tokens: [], timer: 0 });
    follow();  // has the text laid out: the longer it is, the longer that takes
    run.pause = Math.max(kFrame, (performance.now() - start) / kShare);
  };
  try {
    await stream(where, body, {
      signal: controller.signal,
      onPause: (on) => say(on ? "The server is away. The answer goes on when it is back." : ""),
      onEvent: (event) => {
        const { meta } = node, choice = event.choices[0];
        if (event.seed != null) meta.seed = event.seed;
        meta.fingerprint ??= event.system_fingerprint;
        if (event.usage) meta.tokens = event.usage.completion_tokens;
        if (!choice) return;
        meta.first ??= performance.now() - began;
        meta.state = "streaming";
        const text = choice.delta?.content ?? choice.text ?? "", tokens = tokensOf(choice.logprobs);
        const thought = choice.delta?.reasoning_content ?? "";  // shown, but no part of what is said
        run.text += thought + (text && run.thought && !node.text ? "\n\n" : "") + text;
        run.thought ||= thought !== "";
        node.text += text;
        node.tokens.push(...tokens);
        run.tokens.push(...tokens);
        run.timer ||= setTimeout(flush, run.pause);
        if (choice.finish_reason) Object.assign(meta, { finish: choice.finish_reason, hash: choice.logits_hash, receipt: choice.receipt });
      },
    });
    node.meta.state = "done";
  } catch (error) {
    node.meta.state = controller.signal.aborted ? "stopped" : "failed";
    if (!controller.signal.aborted) node.meta.error = error.message;
  }
  node.meta.took = performance.now() - began;
  clearTimeout(run.timer);
  flush();
  if (running === run) running = null;
  say("");
  store();
  views.has(node) ? end(node) : show();
}

// ---- What is shown ----

const say = (text) => { $("chat-state").textContent = text; };

// Stays at the end, unless someone has scrolled up.
function follow(always = false) {
  const box = $("messages");
  if (always || box.scrollHeight - box.scrollTop - box.clientHeight < 200) box.scrollTop = box.scrollHeight;
}

function branches(node) {
  const { parent } = node, count = parent.children.length;
  if (count < 2) return null;
  const go = (by) => { parent.chosen = (parent.chosen + by + count) % count; store(); show(); };
  return el("span", { class: "branches" },
    el("button", { class: "quiet", "aria-label": "Earlier branch", onclick: () => go(-1) }, "‹"),
    `${parent.chosen + 1} / ${count}`,
    el("button", { class: "quiet", "aria-label": "Later branch", onclick: () => go(1) }, "›"));
}

// The sibling with the same request and seed, if there is one: its bits must be the same.
function twin(node) {
  return node.parent.children.find((other) => other !== node && other.meta.hash && other.meta.seed === node.meta.seed &&
    other.meta.request === node.meta.request && other.meta.fingerprint === node.meta.fingerprint);
}

function facts(node) {
  const { meta } = node, parts = [];
  if (meta.tokens != null) {
    const seconds = (meta.took - meta.first) / 1000;
    parts.push(`${meta.tokens} tokens`);
    if (meta.tokens > 1 && seconds > 0) parts.push(`${((meta.tokens - 1) / seconds).toFixed(0)} per second`);
    parts.push(`first after ${Math.round(meta.first)} ms`);
  }
  if (meta.seed != null) parts.push(`seed ${meta.seed}`);
  if (meta.finish) parts.push({ stop: "ended", length: "cut at max tokens" }[meta.finish] ?? meta.finish);
  if (meta.state === "stopped") parts.push("stopped");
  const line = el("div", { class: "facts" }, parts.join(" · "));
  if (meta.hash) {
    line.append(" · ", el("button", { class: "quiet mono", title: `Logits hash ${meta.hash}: copy`, onclick: (e) => copy(meta.hash, e.target) }, meta.hash.slice(0, 12)));
    const other = twin(node);
    if (other) line.append(" ", el("span", { class: other.meta.hash === meta.hash ? "badge good" : "badge bad" },
      other.meta.hash === meta.hash ? "same bits as before" : "other bits than before"));
  }
  return line;
}

function tools(node) {
  const bar = el("div", { class: "tools" }, branches(node));
  const button = (text, onclick) => bar.append(el("button", { class: "quiet", onclick }, text));
  button("Copy", (event) => copy(node.text, event.target));
  if (node.role === "user") {
    button("Edit", () => edit(node));
  } else if (node.meta.state !== "waiting" && node.meta.state !== "streaming") {
    button("Another", () => answer(add(node.parent, "assistant", "")));
    if (node.meta.receipt) button("Receipt", () => { $("receipt").value = JSON.stringify(node.meta.receipt, null, 1); location.hash = "#/check"; });
    if (node.meta.seed != null) button("Repeat", () => answer(add(node.parent, "assistant", ""), node.meta.seed));
  }
  return bar;
}

function edit(node) {
  const area = el("textarea", { rows: Math.min(12, node.text.split("\n").length + 1), "aria-label": "Edit the message" });
  area.value = node.text;
  const send = () => {
    const changed = add(node.parent, "user", area.value.trim());
    answer(add(changed, "assistant", ""));
  };
  area.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey) { event.preventDefault(); send(); }
    if (event.key === "Escape") { event.stopPropagation(); show(); }
  });
  const box = views.get(node).box;
  box.replaceChildren(area, el("div", { class: "row" }, el("button", { class: "main", onclick: send }, "Send as a new branch"),
    el("button", { class: "quiet", onclick: () => show() }, "Cancel")));
  area.focus();
}

// What stands below a message's text.
const below = (node) => [node.meta.error ? el("p", { class: "error" }, node.meta.error) : null,
  node.role === "assistant" ? facts(node) : null, tools(node)].filter(Boolean);

function buttons() {
  $("stop").hidden = !running;
  $("send").hidden = !!running;
}

// An answer is whole. Its text stays as it stands, since laying it out again would cost as much as all before.
function end(node) {
  const { box, element } = views.get(node);
  while (element.nextSibling) element.nextSibling.remove();
  box.append(...below(node));
  box.removeAttribute("aria-busy");
  buttons();
  follow();
}

function show() {
  views.clear();
  if (running) Object.assign(running, { text: "", tokens: [] });  // the new view has it all
  const nodes = path();
  $("messages").replaceChildren(...nodes.map((node) => {
    const view = new TokenView(node, $("show-tokens").checked && node.role === "assistant");
    views.set(node, view);
    view.box = el("article", { class: `message ${node.role}`, "aria-label": node.role === "user" ? "You" : "The model" }, view.element, ...below(node));
    if (running?.node === node) view.box.setAttribute("aria-busy", "true");
    return view.box;
  }));
  if (!nodes.length) $("messages").append(hello());
  buttons();
  follow(!!running);
}

function hello() {
  const tries = ["Tell me a story about an owl.", "Calculate 91 + 87.", "How many items does this list have?\n- 45\n- 72\n- 61"];
  return el("div", { class: "hello" }, el("h2", {}, "The bits of an answer depend on the request alone."),
    el("p", {}, "Ask, then press Repeat: the answer comes again, bit for bit."),
    el("div", { class: "row" }, ...tries.map((text) => el("button", { onclick: () => ask(text) }, text.split("\n")[0]))));
}

function ask(text) {
  const user = add(path().at(-1) ?? root, "user", text);
  answer(add(user, "assistant", ""));
}

export function connected(engine) {
  const before = $("model").value;
  $("model").replaceChildren(...engine.models.map((name) => el("option", { value: name }, name)));
  if (engine.models.includes(before)) $("model").value = before;
  $("top_logprobs").max = engine.max_logprobs;
  if (!engine.chat) { $("plain").checked = true; $("plain").disabled = true; }
}

export function begin() {
  restore();
  for (const name of [...kFields, "system", "stops"]) {
    const kept = localStorage.getItem(`field-${name}`);
    if (kept != null) $(name).value = kept;
    $(name).addEventListener("change", () => localStorage.setItem(`field-${name}`, $(name).value));
  }
  $("ask").addEventListener("submit", (event) => {
    event.preventDefault();
    const text = $("prompt").value.trim();
    if (!text || running) return;
    $("prompt").value = "";
    ask(text);
  });
  $("prompt").addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    $("ask").requestSubmit();
  });
  const stop = () => running?.controller.abort();
  $("stop").addEventListener("click", stop);
  addEventListener("keydown", (event) => { if (event.key === "Escape" && !$("key-dialog").open) stop(); });
  $("new-chat").addEventListener("click", () => {
    stop();
    root = { children: [], chosen: 0 };
    store();
    show();
    $("prompt").focus();
  });
  $("show-tokens").addEventListener("change", show);
  if (matchMedia("(max-width: 60rem)").matches) $("parameters").open = false;
  show();
}

export function shown(on) { if (on && server.engine) $("prompt").focus({ preventScroll: true }); }
