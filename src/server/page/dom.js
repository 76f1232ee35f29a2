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
