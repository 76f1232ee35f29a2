// Small helpers for elements. Text only ever becomes text.
export const $ = (id) => document.getElementById(id);

// el("button", {class: "quiet", onclick: f}, "text", child)
export function el(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value != null) element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child != null));
  return element;
}

export const number = (id) => { const text = $(id).value.trim(); return text === "" ? null : Number(text); };

export async function copy(text, button) {
  const before = button.textContent;
  try {
    await navigator.clipboard.writeText(text);
  } catch {  // not a secure context
    const area = el("textarea", { class: "hidden" });
    area.value = text;
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
  button.textContent = "Copied";
  setTimeout(() => { button.textContent = before; }, 1200);
}

export function sleep(ms, signal) {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(resolve, ms);
    signal?.addEventListener("abort", () => { clearTimeout(timer); reject(signal.reason); }, { once: true });
  });
}

// Round numbers from 0 to at least `most`, about `count` of them.
export function ticks(most, count = 4) {
  const rough = Math.max(most, 1e-9) / count, power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].find((m) => m * power >= rough) * power;
  const all = [];
  for (let v = 0; v < most + step * 0.999; v += step) all.push(Number(v.toPrecision(6)));
  return all;
}

export const milliseconds = (seconds) => seconds == null ? "–" :
  seconds < 0.0995 ? `${(seconds * 1000).toPrecision(2)} ms` : seconds < 1 ? `${Math.round(seconds * 1000)} ms` : `${seconds.toPrecision(3)} s`;

// Asks for a name; null where there is to be none.
export function ask(title, value = "") {
  const dialog = $("name-dialog");
  $("name-title").textContent = title;
  $("name").value = value;
  dialog.returnValue = "";
  dialog.showModal();
  $("name").select();
  return new Promise((resolve) => dialog.addEventListener("close", () => resolve(dialog.returnValue === "ok" ? $("name").value.trim() || null : null), { once: true }));
}

const kToast = 12_000;  // milliseconds
let toastEnds = 0;

// Says something at the head of the page for a while, with what can be done about it.
export function toast(text, action = "", run = () => {}) {
  const hide = () => { $("toast").hidden = true; };
  const button = action ? el("button", { onclick: () => { hide(); run(); } }, action) : null;
  $("toast").replaceChildren(el("span", {}, text), ...(button ? [button] : []), el("button", { class: "quiet", "aria-label": "Dismiss", onclick: hide }, "×"));
  $("toast").hidden = false;
  button?.focus({ preventScroll: true });
  clearTimeout(toastEnds);
  toastEnds = setTimeout(hide, kToast);
}

export function download(name, text, type = "application/json") {
  const url = URL.createObjectURL(new Blob([text], { type }));
  el("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}

// False: the browser's store is full or shut, and what is kept lasts as long as the page.
export function remember(name, value, where = localStorage) {
  try { where.setItem(name, value); } catch { return false; }
  return true;
}
