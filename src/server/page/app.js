// The views, the key and the theme.
import { $ } from "./dom.js";
import { call, server, setKey } from "./api.js";
import * as chat from "./chat.js";
import * as bits from "./bits.js";
import * as engine from "./engine.js";
import * as check from "./check.js";

const views = { chat, bits, engine, check };

export function notice(text) {
  $("notice").textContent = text;
  $("notice").hidden = !text;
}

function show(name, focus = false) {
  if (!views[name]) name = "chat";
  for (const [other, view] of Object.entries(views)) {
    const tab = $(`tab-${other}`), on = other === name;
    tab.setAttribute("aria-selected", on);
    tab.tabIndex = on ? 0 : -1;
    $(other).hidden = !on;
    view.shown?.(on);
  }
  if (focus) $(`tab-${name}`).focus();
  if (location.hash !== `#/${name}`) history.replaceState(null, "", `#/${name}`);
}

function tabs() {
  const names = Object.keys(views);
  names.forEach((name, i) => {
    $(`tab-${name}`).addEventListener("click", () => show(name));
    $(`tab-${name}`).addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (step) show(names[(i + step + names.length) % names.length], true);
      if (event.key === "Home") show(names[0], true);
      if (event.key === "End") show(names.at(-1), true);
    });
  });
  addEventListener("hashchange", () => show(location.hash.slice(2)));
}

function theme() {
  const order = ["system", "light", "dark"];
  const use = (name) => {
    if (name === "system") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = name;
    $("theme").textContent = { system: "Auto", light: "Light", dark: "Dark" }[name];
    $("theme").setAttribute("aria-label", `Theme: ${name}`);
    localStorage.setItem("theme", name);
    engine.redraw();
  };
  let now = localStorage.getItem("theme") ?? "system";
  use(order.includes(now) ? now : (now = "system"));
  $("theme").addEventListener("click", () => use(now = order[(order.indexOf(now) + 1) % order.length]));
}

const kBeat = 5000, kRetry = 1000;  // milliseconds
let timer = 0, awaySince = null;

async function connect() {
  clearTimeout(timer);
  try {
    server.engine = await call("GET", "/v1/engine", null, { signal: AbortSignal.timeout(kBeat) });
  } catch (error) {
    return away(error);
  }
  notice("");
  awaySince = null;
  $("identity").textContent = server.engine.system_fingerprint;
  $("identity").title = `${server.engine.identity} on ${server.engine.device}, weights ${server.engine.weights}`;
  for (const view of Object.values(views)) view.connected?.(server.engine);
  timer = setTimeout(beat, kBeat);
}

function away(error) {
  if (error.status === 401) return notice("The server asks for a key.");
  awaySince ??= new Date().toLocaleTimeString();
  notice(error.status ? `The server refuses: ${error.message}` : `The server has not answered since ${awaySince}. It is asked again every second. Is it running?`);
  timer = setTimeout(connect, kRetry);
}

// Asks now and then whether the server is there, while somebody looks.
async function beat() {
  clearTimeout(timer);
  if (!document.hidden && server.engine) {
    try {
      await fetch("/health", { signal: AbortSignal.timeout(kBeat) });
    } catch (error) {
      return away(error);
    }
  }
  timer = setTimeout(beat, kBeat);
}

function key() {
  const dialog = $("key-dialog");
  const open = () => { $("key").value = server.key; if (!dialog.open) dialog.showModal(); };
  server.onKeyWanted = open;
  $("key-button").addEventListener("click", open);
  dialog.addEventListener("close", () => {
    if (dialog.returnValue !== "ok") return;
    setKey($("key").value);
    connect();
  });
}

tabs();
key();
for (const view of Object.values(views)) view.begin?.({ notice, reconnect: connect });
theme();
show(location.hash.slice(2) || "chat");
document.addEventListener("visibilitychange", () => { if (!document.hidden && server.engine && awaySince == null) beat(); });
connect();
