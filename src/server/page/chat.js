// The chat: a conversation's messages, of which one path is shown, and the answers that come. Editing a message or asking again makes
// a branch. An answer goes on when another conversation is looked at, and with a journal after the page was loaded again.
import { $, copy, el, remember, toast } from "./dom.js";
import { call, newKey, server, stream } from "./api.js";
import * as files from "./files.js";
import { copiesCode, MessageView } from "./message.js";
import { requestFor, takeCalls, tokensOf } from "./requests.js";
import { fill, settings, showDefaults, begin as beginSettings } from "./settings.js";
import { store } from "./store.js";
import { Talk } from "./talk.js";
import * as talks from "./talks.js";
import { context, facts, notes } from "./facts.js";

const kFrame = 100, kFrames = 250;  // milliseconds of text that are shown at once: at least, at most
const kShare = 0.02;          // of the time may go to laying text out, between the two; painting it takes as much again
const kKept = 3000;           // milliseconds between two times that an answer under way is written down
const kOthers = 3 * kKept;    // after so long nobody else is at it
let talk = Talk.begin();
const runs = new Map();       // of answers that come: {controller, talk, node, ...} by node
const views = new Map();      // of messages that are shown
let later = 0;                // looks again for an answer that another page has
const page = sessionStorage.getItem("page") ?? newKey();
remember("page", page, sessionStorage);

const runHere = () => [...runs.values()].find((run) => run.talk.head.id === talk.head.id);

// How many of the oldest messages an answer is made without: as many as the answer before it.
const dropOf = (node) => node.meta.drop ?? [...talk.before(node)].reverse().find((one) => one.meta.drop)?.meta.drop ?? 0;

// ---- Answers ----

const nothing = () => ({ text: "", thought: "", tokens: [], hasCalls: false });

function take(run, event) {
  const { node } = run, { meta } = node, choice = event.choices[0];
  if (event.seed != null) meta.seed = event.seed;
  meta.fingerprint ??= event.system_fingerprint;
  if (!meta.run.id && event.id) { meta.run.id = event.id; keep(run, true); }
  if (event.usage) Object.assign(meta, { tokens: event.usage.completion_tokens, prompt: event.usage.prompt_tokens });
  if (!choice) return;
  meta.first ??= performance.now() - run.began;
  meta.state = "streaming";
  const text = choice.delta?.content ?? choice.text ?? "", thought = choice.delta?.reasoning_content ?? "", tokens = tokensOf(choice.logprobs);
  if (text && node.thought && !node.text) meta.thought = performance.now() - run.began - meta.first;
  if (choice.delta?.tool_calls) { takeCalls(node, choice.delta.tool_calls); run.fresh.hasCalls = true; }
  node.text += text;
  node.thought += thought;
  node.tokens.push(...tokens);
  run.fresh.text += text;
  run.fresh.thought += thought;
  run.fresh.tokens.push(...tokens);
  if (choice.finish_reason) Object.assign(meta, { finish: choice.finish_reason, hash: choice.logits_hash, receipt: choice.receipt });
}

function flush(run) {
  const start = performance.now();
  views.get(run.node)?.append(run.fresh);
  run.fresh = nothing();
  follow();  // has the text laid out: the longer it is, the longer that takes
  const spent = performance.now() - start;
  run.pause = Math.min(kFrames, Math.max(kFrame, spent / kShare));
  keep(run);
}

// Writes an answer down that is under way, for when the page goes.
function keep(run, now = false) {
  if (run.isGone || !run.node.meta.run || (!now && performance.now() - run.kept < kKept)) return;
  run.kept = performance.now();
  run.node.meta.run.seen = Date.now();
  run.talk.save(run.node);
}

const say = (text) => { $("chat-state").textContent = text; };
const kPauses = { away: "The server does not answer. The answer goes on when it is back.", busy: "The server is busy. It is asked again." };

async function answer(node, seed) {
  let asked;
  try {
    asked = requestFor(talk.before(node).slice(dropOf(node)), seed);
  } catch (error) {
    Object.assign(node.meta, { state: "failed", error: error.message });
    await talk.save(node, node.parent);
    return show();
  }
  const [path, body] = asked;
  Object.assign(node.meta, { request: JSON.stringify({ ...body, seed: undefined }), run: { path, body, key: newKey(), id: null, page, seen: Date.now() } });
  talk.head.settings = settings();
  await perform(talk, node);
}

// Asks for what a message's `run` says, from the beginning or, where the answer has an id already, for that answer.
async function perform(of, node) {
  const { meta } = node, { path, body, key, id } = meta.run, controller = new AbortController();
  const run = { controller, talk: of, node, fresh: nothing(), pause: kFrame, began: performance.now(), kept: 0 };
  runs.set(node, run);
  const had = { text: node.text, thought: node.thought, calls: node.calls, tokens: node.tokens };
  Object.assign(node, { text: "", thought: "", calls: [], tokens: [] });
  Object.assign(meta, { state: "waiting", first: undefined, thought: undefined, isResumed: id != null });
  meta.run.page = page;
  of.head.changed = Date.now();
  of.save(node, ...(node.parent ? [node.parent, ...(node.parent.parent ? [node.parent.parent] : [])] : []));
  talks.touch(of);
  if (of === talk) show();
  try {
    await stream(path, body, { signal: controller.signal, key, known: id, onPause: (why) => { if (of === talk) say(kPauses[why] ?? ""); }, onEvent: (event) => take(run, event), onBatch: () => flush(run), pause: () => run.pause });
    meta.state = "done";
  } catch (error) {
    meta.state = controller.signal.aborted ? "stopped" : "failed";
    if (!node.text && !node.thought) Object.assign(node, had);
    if (!controller.signal.aborted) Object.assign(meta, { error: error.message, isFull: error.code === "context_length_exceeded" && !/max_/.test(error.param ?? "") });
  }
  finish(run);
}

function finish(run) {
  const { node, talk: of } = run, { meta } = node;
  if (run.isGone) { runs.delete(node); return; }
  meta.took = performance.now() - run.began;
  meta.isFull ||= meta.finish === "length" && context() > 0 && meta.prompt + meta.tokens >= context();
  delete meta.run;
  flush(run);
  runs.delete(node);
  of.head.changed = Date.now();
  of.save(node);
  talks.touch(of);
  if (of !== talk) return;
  say("");
  if (views.has(node)) views.get(node).end();
  else show();
  buttons();
  follow();
}

// A conversation that is deleted is written no more.
function drop(id) {
  for (const run of runs.values()) if (run.talk.head.id === id) { run.isGone = true; run.controller.abort(); }
}

// Goes on with answers that the page began before it was loaded anew. Without a journal the rest is lost.
function resume(of) {
  for (const node of of.all.values()) {
    const { meta } = node;
    if (!meta.run || runs.has(node)) continue;
    if (meta.run.page !== page && Date.now() - meta.run.seen < kOthers) {  // of a page that may be there
      clearTimeout(later);
      later = setTimeout(() => { if (of === talk) resume(of); }, kOthers);
      continue;
    }
    if (server.engine.journal) { perform(of, node); continue; }
    delete meta.run;
    Object.assign(meta, { state: "failed", error: "the page was loaded anew while the answer came, and without --journal the rest of it is lost" });
    of.save(node);
  }
  if (of === talk && !document.querySelector("#messages textarea")) show();  // nor is what someone types lost
}

// The same question without the oldest turns, so that about half of the context is free.
function leaveOut(node) {
  const all = talk.before(node), had = dropOf(node), length = (one) => one.text.length + one.thought.length + one.files.reduce((sum, file) => sum + file.text.length, 0) + 20;
  const tokens = Number(/has (\d+) tokens/.exec(node.meta.error ?? "")?.[1] ?? node.meta.prompt ?? context());
  let letters = all.slice(had).reduce((sum, one) => sum + length(one), 0), drop = had;
  const most = letters * context() / 2 / Math.max(1, tokens);
  while (drop < all.length - 1 && (drop === had || letters > most || all[drop].role !== "user")) letters -= length(all[drop++]);
  if (drop === had) return toast("This message alone has more tokens than the context. Make it shorter, or start the server with a larger --max-model-len.");
  answer(talk.add(node.parent, "assistant", { meta: { drop } }));
}

// ---- What is shown ----

// Stays at the end, unless someone has scrolled up.
function follow(always = false) {
  const box = $("messages");
  if (always || box.scrollHeight - box.scrollTop - box.clientHeight < 200) box.scrollTop = box.scrollHeight;
}

function branches(node) {
  const { parent } = node, count = parent.children.length;
  if (count < 2) return null;
  const go = (by) => { parent.chosen = (parent.chosen + by + count) % count; talk.save(parent); show(); };
  return el("span", { class: "branches" },
    el("button", { class: "quiet", "aria-label": "Earlier branch", onclick: () => go(-1) }, "‹"),
    `${parent.chosen + 1} / ${count}`,
    el("button", { class: "quiet", "aria-label": "Later branch", onclick: () => go(1) }, "›"));
}

const again = (node, seed) => answer(talk.add(node.parent, "assistant", node.meta.drop ? { meta: { drop: node.meta.drop } } : {}), seed);

function tools(node) {
  const bar = el("div", { class: "tools below" }, branches(node));
  const button = (text, onclick) => bar.append(el("button", { class: "quiet", onclick }, text));
  if (node.role !== "tool") button("Copy", (event) => copy(node.text, event.target));
  if (node.role === "user") button("Edit", () => edit(node));
  if (node.role === "assistant" && !runs.has(node)) {
    button(node.meta.state === "failed" ? "Try again" : "Another", () => again(node));
    if (node.meta.receipt) button("Receipt", () => { $("receipt").value = JSON.stringify(node.meta.receipt, null, 1); location.hash = "#/check"; });
    if (node.meta.seed != null) button("Repeat", () => again(node, node.meta.seed));
  }
  return bar;
}

// Where the model waits for what its calls come to.
function resultForm(node) {
  if (!node.calls.length || node.children.length || runs.has(node)) return null;
  const areas = node.calls.map((one) => el("textarea", { rows: 2, "aria-label": `Result of ${one.name}`, placeholder: `What ${one.name} returns` }));
  const send = (event) => {
    event.preventDefault();
    answer(talk.add(talk.add(node, "tool", { results: node.calls.map((one, i) => ({ id: one.id, content: areas[i].value })) }), "assistant"));
  };
  return el("form", { class: "results below", onsubmit: send }, ...areas, el("div", { class: "row" }, el("button", { class: "main" }, "Send results")));
}

function edit(node) {
  const area = el("textarea", { rows: Math.min(12, node.text.split("\n").length + 1), "aria-label": "Edit the message" });
  area.value = node.text;
  const send = () => {
    if (!area.value.trim() && !node.files.length) return;
    answer(talk.add(talk.add(node.parent, "user", { text: area.value.trim(), files: node.files }), "assistant"));
  };
  area.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); send(); }
    if (event.key === "Escape") { event.stopPropagation(); show(); }
  });
  views.get(node).box.replaceChildren(area, el("div", { class: "row" }, el("button", { class: "main", onclick: send }, "Send as a new branch"),
    el("button", { class: "quiet", onclick: () => show() }, "Cancel")));
  area.focus();
}

// The parts below a message's text.
const below = (node) => [...(node.role === "assistant" ? [...notes(node, { leaveOut, fresh }), resultForm(node), facts(node)] : []), tools(node)].filter(Boolean);

function buttons() {
  const busy = !!runHere();
  $("stop").hidden = !busy;
  $("send").hidden = busy;
}

function show() {
  document.getElementById("tip")?.remove();  // its token goes without a word
  views.clear();
  const nodes = talk.path(), drop = nodes.reduce((most, node) => Math.max(most, node.meta.drop ?? 0), 0);
  const boxes = nodes.map((node) => {
    const run = runs.get(node);
    if (run) run.fresh = nothing();  // the new view has it all
    const view = new MessageView(node, { asTokens: $("show-tokens").checked, busy: !!run, below: () => below(node) });
    views.set(node, view);
    return view.box;
  });
  if (drop) boxes.splice(Math.min(drop, boxes.length), 0, el("p", { class: "divider" }, "The model no longer sees the messages above: the context was full."));
  $("messages").replaceChildren(...boxes);
  if (!nodes.length) $("messages").append(hello());
  buttons();
  follow(!!runHere());
}

function hello() {
  const tries = ["Tell me a story about an owl.", "Calculate 91 + 87.", "How many items does this list have?\n- 45\n- 72\n- 61"];
  return el("div", { class: "hello" }, el("h2", {}, "The bits of an answer depend on the request alone."),
    el("p", {}, "Ask, then press Repeat: the answer comes again, bit for bit."),
    el("div", { class: "row" }, ...tries.map((text) => el("button", { onclick: () => send(text) }, text.split("\n")[0]))));
}

function send(text, attached = []) {
  const user = talk.add(talk.path().at(-1) ?? talk.root, "user", { text, files: attached });
  talk.save(user, user.parent);
  remember("talk", talk.head.id);
  talks.note(talk);
  answer(talk.add(user, "assistant"));
}

// ---- Conversations ----

// On a narrow page the conversations and the parameters are folded, and at most one of them is open.
const narrow = matchMedia("(max-width: 60rem)");

function panels() {
  const both = [$("talks"), $("parameters")], fit = () => { for (const one of both) one.open = !narrow.matches; };
  both.forEach((one, i) => one.addEventListener("toggle", () => { if (one.open && narrow.matches) both[1 - i].open = false; }));
  narrow.addEventListener("change", fit);
  if (narrow.matches) fit();
}

function open(other) {
  if (narrow.matches) $("talks").open = false;
  const running = [...runs.values()].find((run) => run.talk.head.id === other.head.id);
  talk = running?.talk ?? other;
  remember("talk", talk.head.id);
  fill(talk.head.settings);
  say("");
  show();
  follow(true);
  talks.note(talk);
  if (server.engine) resume(talk);
  if (location.hash !== "#/chat") location.hash = "#/chat";
}

function fresh() {
  if (narrow.matches) $("talks").open = false;
  talk = Talk.begin();
  localStorage.removeItem("talk");
  say("");
  show();
  talks.note(talk);
  $("prompt").focus();
}

// Another page of this browser changed a conversation.
async function changed(id, head) {
  if (!head) drop(id);
  if (id !== talk.head.id || runHere()) return;
  if (!head) { if (!talk.isEmpty) fresh(); return; }
  const other = await talks.loadTalk(head);
  if (id !== talk.head.id || runHere()) return;  // since then something else was opened or asked
  talk = other;
  show();
}

// A conversation is one object, whether its answer is under way or seen.
const talkOf = (head) => head.id === talk.head.id ? talk : [...runs.values()].find((run) => run.talk.head.id === head.id)?.talk ?? new Talk(head);

const restored = (async () => {
  const heads = await talks.begin({ open, fresh, changed, drop, talkOf, isAnswering: (id) => [...runs.values()].some((run) => run.talk.head.id === id) });
  const last = heads.find((head) => head.id === localStorage.getItem("talk"));
  if (!last) return;
  talk = await talks.loadTalk(last);
  fill(talk.head.settings);
  talks.note(talk);
  show();
  follow(true);
})().catch((error) => toast(`The conversations cannot be read: ${error.message}`));

export async function connected(engine) {
  const before = $("model").value;
  $("model").replaceChildren(...engine.models.map((name) => el("option", { value: name }, name)));
  if (engine.models.includes(before)) $("model").value = before;
  $("top_logprobs").max = engine.max_logprobs;
  $("plain").disabled = !engine.chat;
  if (!engine.chat) $("plain").checked = true;
  await restored;
  resume(talk);
  const props = await call("GET", "/props").catch(() => null);
  showDefaults(props?.default_generation_settings?.params);
}

export function begin({ notice }) {
  store.onFault = notice;
  const kept = localStorage.getItem("fields");
  try { fill(JSON.parse(kept) ?? {}); } catch { /* of another version */ }
  beginSettings(() => remember("fields", JSON.stringify(settings())));
  files.begin();
  copiesCode($("messages"));
  $("ask").addEventListener("submit", (event) => {
    event.preventDefault();
    const text = $("prompt").value.trim();
    if ((!text && !files.hasFiles()) || runHere()) return;
    $("prompt").value = "";
    send(text, files.taken());
  });
  $("prompt").addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    $("ask").requestSubmit();
  });
  const stop = () => { for (const run of runs.values()) if (run.talk.head.id === talk.head.id) run.controller.abort(); };
  $("stop").addEventListener("click", stop);
  addEventListener("keydown", (event) => { if (event.key === "Escape" && !document.querySelector("dialog[open]")) stop(); });
  addEventListener("pagehide", () => { for (const run of runs.values()) keep(run, true); });
  $("show-tokens").addEventListener("change", show);
  panels();
  show();
}

export function shown(on) { if (on && server.engine) $("prompt").focus({ preventScroll: true }); }
