// The engine's steps as they happen: what each computed, how long it took, whom it made wait.
import { $, el, milliseconds, number, sleep, ticks } from "./dom.js";
import { call, changeEngine, server } from "./api.js";

const kPoll = 200;  // milliseconds
let steps = [], last = 0, visible = false, polling = false, state = null, offset = null;
let load = null;

// ---- What the server says ----

async function poll() {
  if (polling) return;
  polling = true;
  while (visible) {
    try {
      const reply = await call("GET", `/v1/engine/steps?after=${last}`);
      if (reply.last < last) { steps = []; }  // another server
      last = reply.last;
      const names = reply.columns;
      for (const row of reply.steps) steps.push(Object.fromEntries(names.map((name, i) => [name, row[i]])));
      const oldest = reply.now_ms - 61_000;
      steps = steps.filter((step) => step.end_ms > oldest);
      offset = reply.now_ms - performance.now();
      const generated = reply.stats.generated_tokens;
      reply.rate = state && reply.now_ms > state.now_ms ? (generated - state.stats.generated_tokens) / (reply.now_ms - state.now_ms) * 1000 : 0;
      reply.smooth = state ? 0.8 * (state.smooth ?? 0) + 0.2 * reply.rate : 0;
      state = reply;
      tiles();
    } catch (error) {
      $("engine-state").textContent = error.status === 401 ? "" : `The server is away: ${error.message}`;
      last = 0;
      await sleep(1000);
    }
    await sleep(kPoll);
  }
  polling = false;
}

function tiles() {
  const { stats, seconds, smooth } = state, used = stats.blocks - stats.free_blocks;
  const tile = (name, value, more = "") => el("div", { class: "tile" }, el("span", {}, name), el("b", {}, value), el("small", {}, more));
  const spread = (of) => {
    const [p90, p99] = [of.p90, of.p99].map((seconds) => milliseconds(seconds).split(" "));
    return `p90 ${p90[1] === p99[1] ? p90[0] : p90.join(" ")} · p99 ${p99.join(" ")}`;
  };
  const sum = (field) => steps.reduce((all, step) => all + step[field], 0), drafted = sum("draft_rows"), accepted = sum("accepted");
  const cached = stats.prompt_tokens ? Math.round(100 * stats.cached_tokens / stats.prompt_tokens) : 0;
  $("tiles").replaceChildren(
    tile("Answering", stats.running, `${stats.waiting} waiting`), tile("Tokens per second", smooth.toFixed(0), "of answers"),
    tile("Time to first token", milliseconds(seconds.time_to_first_token.p50), spread(seconds.time_to_first_token)),
    tile("Between tokens", milliseconds(seconds.inter_token.p50), spread(seconds.inter_token)),
    tile("KV cache", `${stats.blocks ? Math.round(100 * used / stats.blocks) : 0} %`, `${used} of ${stats.blocks} blocks`),
    tile("Prefix cache", `${cached} %`, "of prompt tokens"),
    tile("Drafts accepted", drafted ? `${Math.round(100 * accepted / drafted)} %` : "–", drafted ? `${accepted} of ${drafted}, last minute` : "no drafts"));
}

// ---- Pictures ----

function ink(name) { return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim(); }

class Chart {
  constructor(id, unit, draw) { Object.assign(this, { canvas: $(id), unit, draw }); }

  paint(seconds, now) {
    const { canvas } = this, scale = devicePixelRatio || 1, width = canvas.clientWidth, height = canvas.clientHeight;
    if (!width) return;
    if (canvas.width !== Math.round(width * scale)) canvas.width = Math.round(width * scale);
    if (canvas.height !== Math.round(height * scale)) canvas.height = Math.round(height * scale);
    const c = canvas.getContext("2d");
    c.setTransform(scale, 0, 0, scale, 0, 0);
    c.clearRect(0, 0, width, height);
    c.font = "11px system-ui, sans-serif";
    const frame = { left: 48, right: width - 8, top: 8, bottom: height - 20 };
    const shown = steps.filter((step) => step.end_ms > now - seconds * 1000);
    const most = Math.max(this.draw.most(shown), 1e-3), marks = ticks(most, 3), top = marks.at(-1);
    const x = (ms) => frame.right - (now - ms) / (seconds * 1000) * (frame.right - frame.left);
    const y = (value) => frame.bottom - value / top * (frame.bottom - frame.top);
    c.lineWidth = 1;
    c.fillStyle = ink("muted");
    c.strokeStyle = ink("line");
    c.textAlign = "right";
    for (const mark of marks) {
      c.beginPath(); c.moveTo(frame.left, Math.round(y(mark)) + 0.5); c.lineTo(frame.right, Math.round(y(mark)) + 0.5); c.stroke();
      c.fillText(`${mark}`, frame.left - 6, y(mark) + 4);
    }
    c.textAlign = "center";
    for (const mark of ticks(seconds, 5)) if (mark <= seconds)
      c.fillText(mark ? `−${mark} s` : "now", Math.min(x(now - mark * 1000), frame.right - 10), height - 5);
    c.save();
    c.translate(10, (frame.top + frame.bottom) / 2); c.rotate(-Math.PI / 2);
    c.fillText(this.unit, 0, 0);
    c.restore();
    c.beginPath(); c.rect(frame.left, frame.top, frame.right - frame.left, frame.bottom - frame.top); c.save(); c.clip();
    this.draw.paint(c, shown, x, y, frame);
    c.restore();
  }
}

const kinds = [["decode_rows", "decode"], ["prompt_rows", "prompt"], ["draft_rows", "draft"]];
const rowsOf = (step) => step.decode_rows + step.prompt_rows + step.draft_rows;

const charts = [
  new Chart("rows", "rows", {
    most: (shown) => Math.max(8, ...shown.map(rowsOf)),
    paint(c, shown, x, y) {
      for (const step of shown) {
        const left = x(step.end_ms - step.ms), width = Math.max(x(step.end_ms) - left - 0.5, 1);
        let below = 0;
        for (const [field, colour] of kinds) {
          if (!step[field]) continue;
          c.fillStyle = ink(colour);
          c.fillRect(left, y(below + step[field]), width, y(below) - y(below + step[field]));
          below += step[field];
        }
      }
    },
  }),
  new Chart("gaps", "ms", {
    most: (shown) => Math.max(10, ...shown.map((step) => Math.max(step.widest_gap_ms, step.stalled ? step.ms : 0))),
    paint(c, shown, x, y, frame) {
      for (const step of shown) {
        const left = x(step.end_ms - step.ms), width = Math.max(x(step.end_ms) - left, 1.5);
        if (step.stalled) { c.fillStyle = ink("stall"); c.globalAlpha = 0.28; c.fillRect(left, frame.top, width, frame.bottom - frame.top); c.globalAlpha = 1; }
        if (!step.widest_gap_ms) continue;
        c.fillStyle = ink("decode");
        c.fillRect(x(step.end_ms) - 1.5, y(step.widest_gap_ms), 3, Math.max(frame.bottom - y(step.widest_gap_ms), 1));
      }
    },
  }),
  new Chart("cache", "blocks", {
    most: (shown) => Math.max(4, ...shown.map((step) => Math.max(step.used_blocks, step.waiting))),
    paint(c, shown, x, y, frame) {
      for (const [field, colour, fills] of [["used_blocks", "cache", true], ["waiting", "queue", false]]) {
        c.beginPath();
        shown.forEach((step, i) => { const at = [x(step.end_ms), y(step[field])]; i ? c.lineTo(...at) : c.moveTo(...at); });
        if (!shown.length) continue;
        c.strokeStyle = c.fillStyle = ink(colour);
        c.lineWidth = 1.5;
        c.stroke();
        if (!fills) continue;
        c.lineTo(x(shown.at(-1).end_ms), frame.bottom); c.lineTo(x(shown[0].end_ms), frame.bottom); c.globalAlpha = 0.2; c.fill(); c.globalAlpha = 1;
      }
    },
  }),
];

export function redraw() {
  if (!visible || offset == null) return;
  const now = performance.now() + offset - kPoll;
  for (const chart of charts) chart.paint(Number($("window").value), now);
}

function animate() {
  if (!visible) return;
  redraw();
  setTimeout(() => requestAnimationFrame(animate), 60);
}

// ---- Load ----

const tokens = (length) => Array.from({ length }, () => Math.floor(Math.random() * server.engine.vocabulary));

async function keepAsking(body, pause, signal) {
  const say = (text) => { $("engine-state").textContent = text; };
  let said = "";  // what is wrong, until it is not
  while (!signal.aborted) {
    try {
      await call("POST", "/v1/completions", { model: server.engine.models[0], ignore_eos: true, temperature: 1, ...body() }, { signal });
      if (said && $("engine-state").textContent === said) say("");
      said = "";
    } catch (error) {
      if (!signal.aborted) { say(said = error.message); await sleep(500, signal).catch(() => {}); }
    }
    if (pause) await sleep(pause(), signal).catch(() => {});
  }
}

function toggleLoad() {
  if (load) { load.abort(); load = null; } else {
    load = new AbortController();
    const room = server.engine.context - 400, prompt = Math.max(1, Math.min(number("load-prompt"), room));
    // A browser has six connections to a server: streams share two of them.
    const half = number("load-streams") / 2;
    for (const count of [Math.ceil(half), Math.floor(half)].filter(Boolean))
      keepAsking(() => ({ prompt: Array.from({ length: count }, () => tokens(16)), max_tokens: Math.min(300, room) }), null, load.signal);
    keepAsking(() => ({ prompt: tokens(prompt), max_tokens: 4 }), () => number("load-pause") * 1000, load.signal);
  }
  $("load").textContent = load ? "Stop load" : "Make load";
  $("load").setAttribute("aria-pressed", !!load);
}

async function apply() {
  $("engine-state").textContent = "Waiting for the answers that have begun …";
  $("apply").disabled = true;
  try {
    await changeEngine({ policy: $("policy").value, step_rows: number("step-rows") ?? 0, drafter: $("drafter").value, ranks: number("ranks") });
    const { policy, drafter, ranks } = server.engine.lab;
    $("engine-state").textContent = `Now ${policy}${drafter === "none" ? "" : `, drafts by ${drafter}`}${ranks > 1 ? `, ${ranks} ranks` : ""}.`;
  } catch (error) {
    $("engine-state").textContent = error.message;
  }
  $("apply").disabled = false;
}

export function connected(engine) {
  $("engine-lab").hidden = !engine.lab;
  if (!engine.lab) return;
  const { lab } = engine;
  for (const [id, names, now] of [["policy", lab.policies, lab.policy], ["drafter", lab.drafters, lab.drafter], ["ranks", lab.rank_counts, lab.ranks]]) {
    $(id).replaceChildren(...names.map((name) => el("option", { value: name }, `${name}`)));
    $(id).value = now;
  }
  $("step-rows").value = lab.step_rows;
}

export function begin() {
  $("load").addEventListener("click", () => server.engine && toggleLoad());
  $("apply").addEventListener("click", apply);
  $("window").addEventListener("change", redraw);
  addEventListener("resize", redraw);
}

export function shown(on) {
  const was = visible;
  visible = on;
  if (on && !was) { poll(); animate(); }
}
