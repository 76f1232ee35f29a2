// Same bits: one prompt many times among random neighbours. Answers fall into bins by (tokens, logits hash).
import { $, el, number, sleep } from "./dom.js";
import { call, changeEngine, server } from "./api.js";
import { sha256 } from "./sha256.js";

const kBinsShown = 10;
let run = null, tell = () => {};

const random = (below) => Math.floor(Math.random() * below);
const pick = (list) => list[random(list.length)];

// ---- A board: the answers of one arithmetic ----

class Board {
  constructor(title, wanted) {
    this.wanted = wanted;
    this.answers = 0;
    this.bins = new Map();
    this.count = el("b", { class: "huge" }, "–");
    this.words = el("span", {});
    this.sub = el("p", { class: "note" });
    this.cells = el("div", { class: "cells", role: "img" });
    this.list = el("ol", { class: "bins" });
    for (let i = 0; i < wanted; ++i) this.cells.append(el("i"));
    this.element = el("article", { class: "board" }, el("h2", {}, title), el("p", { class: "verdict" }, this.count, this.words), this.cells, this.sub, this.list);
  }

  add(answer, how) {
    const key = answer.tokenHash + answer.hash;
    if (!this.bins.has(key)) this.bins.set(key, { ...answer, number: this.bins.size, count: 0 });
    const bin = this.bins.get(key), cell = this.cells.children[this.answers++];
    ++bin.count;
    cell.className = `b${Math.min(bin.number, 8)}`;
    cell.title = `bin ${bin.number + 1}: ${how}`;
    if (bin.number > 0) cell.textContent = bin.number + 1;
    this.draw();
  }

  draw() {
    const { size } = this.bins;
    this.count.textContent = size;
    this.words.textContent = ` ${size === 1 ? "bin" : "bins"} of ${this.answers} ${this.answers === 1 ? "answer" : "answers"}`;
    this.element.classList.toggle("one", size === 1);
    this.element.classList.toggle("many", size > 1);
    this.cells.setAttribute("aria-label", `${this.answers} answers in ${size} bins`);
    const sorted = [...this.bins.values()].sort((a, b) => b.count - a.count || a.number - b.number);
    const texts = new Set(sorted.map((bin) => bin.tokenHash)).size;
    this.sub.textContent = size < 2 ? "" : `${texts === 1 ? "one text" : `${texts} different texts`} from ${size} different logits`;
    this.list.replaceChildren(...sorted.slice(0, kBinsShown).map((bin) => this.line(bin, sorted[0])));
    if (size > kBinsShown) this.list.append(el("li", { class: "note" }, `and ${size - kBinsShown} more bins`));
  }

  line(bin, first) {
    const share = el("i");
    share.style.width = `${100 * bin.count / this.wanted}%`;
    return el("li", {}, el("div", { class: "head" }, el("span", { class: `swatch b${Math.min(bin.number, 8)}` }, String(bin.number + 1)),
      el("b", {}, `${bin.count} ×`), el("span", { class: "mono", title: `tokens ${bin.tokenHash}\nlogits ${bin.hash}` }, `tokens ${bin.tokenHash.slice(0, 8)} · logits ${bin.hash.slice(0, 8)}`)),
      el("div", { class: "share" }, share), el("p", { class: "excerpt" }, ...marked(bin, first)));
  }
}

// The text, with the first token that differs from the largest bin's.
function marked(bin, first) {
  const at = bin.tokens.findIndex((token, i) => token !== first.tokens[i]);
  if (bin === first) return [cut(bin.pieces.join(""))];
  if (at < 0) return [el("span", { class: "note" }, "the same text from other logits: "), cut(bin.pieces.join(""))];
  const before = bin.pieces.slice(0, at).join("");
  return [before.length > 60 ? `… ${before.slice(-58)}` : before,
    el("mark", { title: `token ${at + 1}: here ${JSON.stringify(bin.pieces[at])}, in the largest bin ${JSON.stringify(first.pieces[at] ?? "the end")}` }, bin.pieces[at] || "∅"),
    cut(bin.pieces.slice(at + 1).join("")), el("span", { class: "note" }, ` from token ${at + 1} on`)];
}

const cut = (text) => text.length > 150 ? `${text.slice(0, 148)}…` : text;

// ---- Requests ----

// A browser has six connections to a server: an answer that stands beside others shares its request with some.
const kConnections = 3;

async function ask(copies, signal) {
  const body = {
    model: server.engine.models[0], prompt: Array(copies).fill($("bits-prompt").value), max_tokens: number("bits-tokens"), temperature: number("bits-temperature"),
    seed: number("bits-seed"), logits_hash: true, return_token_ids: true, logprobs: 0,
  };
  // Sometimes from the prefix cache, sometimes not.
  if (random(2)) body.cache_salt = `${Math.random()}`;
  const reply = await call("POST", "/v1/completions", body, { signal });
  return reply.choices.map((choice) => ({
    tokens: choice.token_ids, pieces: choice.logprobs.tokens, hash: choice.logits_hash,
    tokenHash: sha256(new Uint8Array(Int32Array.from(choice.token_ids).buffer)),
  }));
}

// Other people's requests: other prompts of any length, answers of any length, pauses.
async function neighbours(most, signal, counted) {
  const { vocabulary, context, models } = server.engine;
  while (!signal.aborted && most > 0) {
    const prompt = Array.from({ length: 1 + random(most) }, () => {
      const length = 1 + random(Math.min(pick([8, 60, 300, 900]), context - 80));
      return Array.from({ length }, () => random(vocabulary));
    });
    try {
      await call("POST", "/v1/completions", { model: models[0], prompt, max_tokens: 1 + random(60), ignore_eos: true, temperature: pick([0, 1]) }, { signal });
      counted(prompt.length);
      await sleep(random(120), signal);
    } catch (error) {
      if (signal.aborted) return;
      await sleep(200, signal).catch(() => {});
    }
  }
}

// `count` answers, several at a time, among neighbours.
async function round(board, count, how, signal, progress) {
  const around = new AbortController();
  signal.addEventListener("abort", () => around.abort(), { once: true });
  const half = number("bits-neighbours") / 2, counted = (some) => { progress.neighbours += some; };
  const others = [Math.ceil(half), Math.floor(half)].map((most) => neighbours(most, around.signal, counted));
  const each = Math.ceil(number("bits-parallel") / kConnections);
  let left = count;
  const worker = async () => {
    while (left > 0) {
      const copies = Math.min(left, 1 + random(each));
      left -= copies;
      await sleep(random(40), signal);
      for (const answer of await ask(copies, signal)) board.add(answer, how);
      progress.say(how);
    }
  };
  try {
    await Promise.all(Array.from({ length: Math.min(kConnections, number("bits-parallel")) }, worker));
  } finally {
    around.abort();
    await Promise.allSettled(others);
  }
}

const change = (settings, signal) => changeEngine(settings, { signal });

// How the engine computes in each round: as it is, or by several policies, chunks, drafters and ranks.
function ways(lab) {
  if (!lab || !$("bits-vary").checked) return [null];
  const { policies, drafters, rank_counts: ranks } = lab;
  const drafter = (i) => drafters[i % drafters.length], rank = (i) => ranks[i % ranks.length];
  return [["sarathi", 0], ["sarathi", 288], ["vllm", 0], ["simple-chunking", 320], ["faster-transformer", 0]]
    .filter(([policy]) => policies.includes(policy))
    .map(([policy, step_rows], i) => ({ policy, step_rows, drafter: drafter(i), ranks: rank(i) }));
}

function words({ policy, step_rows, drafter, ranks }) {
  return [`policy ${policy}`, step_rows && `steps of ${step_rows} rows`, drafter !== "none" && `drafts by ${drafter}`, ranks > 1 && `${ranks} ranks`]
    .filter(Boolean).join(", ");
}

async function fill(board, arithmetic, signal, progress) {
  const { lab } = server.engine, all = ways(lab), each = Math.ceil(board.wanted / all.length);
  for (const way of all) {
    const count = Math.min(each, board.wanted - board.answers);
    if (count <= 0) break;
    if (lab && arithmetic) await change({ ...(way ?? {}), arithmetic }, signal);
    await round(board, count, way ? words(way) : "among random neighbours", signal, progress);
  }
}

async function start() {
  const controller = new AbortController(), { signal } = controller, { lab } = server.engine, wanted = number("bits-count");
  const before = lab && { policy: lab.policy, step_rows: lab.step_rows, arithmetic: lab.arithmetic, drafter: lab.drafter, ranks: lab.ranks };
  const own = lab ? lab.arithmetics[0] : null, wantsControl = lab && $("bits-control").checked && lab.arithmetics.includes("control");
  const first = new Board(`Invar · ${server.engine.identity}`, wanted), boards = [first];
  if (wantsControl) boards.push(new Board("Conventional baseline · control", wanted));
  $("boards").replaceChildren(...boards.map((board) => board.element));
  run = controller;
  $("bits-run").textContent = "Stop";
  const progress = { neighbours: 0, say: (how) => { $("bits-state").textContent = `${how} · ${progress.neighbours} neighbours answered so far`; } };
  try {
    await fill(first, own, signal, progress);
    if (wantsControl) await fill(boards[1], "control", signal, progress);
    $("bits-state").textContent = `Done, beside ${progress.neighbours} other answers.`;
  } catch (error) {
    $("bits-state").textContent = signal.aborted ? "Stopped." : error.message;
  }
  if (before) await change(before).catch((error) => tell(error.message));
  run = null;
  $("bits-run").textContent = "Run";
}

export function connected(engine) {
  $("bits-lab").hidden = !engine.lab;
  $("bits-no-lab").hidden = !!engine.lab;
}

export function begin({ notice }) {
  tell = notice;
  $("bits-form").addEventListener("submit", (event) => {
    event.preventDefault();
    if (run) run.abort();
    else if (server.engine) start();
  });
}
