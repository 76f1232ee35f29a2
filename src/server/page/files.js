// Text files beside the message that is being written: chosen, dropped or pasted.
import { $, el, toast } from "./dom.js";
import { sizeOf } from "./message.js";

const kMost = 2 << 20;  // bytes of a file
let files = [];

async function textOf(file) {
  if (file.size > kMost) throw new Error(`${file.name} has ${(file.size / 1e6).toFixed(1)} MB; at most ${kMost / (1 << 20)} MB can be attached`);
  let text;
  try { text = new TextDecoder("utf-8", { fatal: true }).decode(await file.arrayBuffer()); } catch { text = "\0"; }
  if (text.includes("\0")) throw new Error(`${file.name} is no text file: the model reads text alone`);
  return { name: file.name, text };
}

async function take(list) {
  for (const file of list) {
    try { files.push(await textOf(file)); } catch (error) { toast(error.message); }
  }
  show();
}

function show() {
  $("attached").replaceChildren(...files.map((file) => el("li", {}, `${file.name} `, el("span", { class: "note" }, sizeOf(file.text)),
    el("button", { type: "button", class: "quiet", "aria-label": `Remove ${file.name}`, onclick: () => { files = files.filter((other) => other !== file); show(); $("prompt").focus(); } }, "×"))));
}

// Those that go with the message; none are left.
export function taken() {
  const all = files;
  files = [];
  show();
  return all;
}

export const hasFiles = () => files.length > 0;

export function begin() {
  $("attach").addEventListener("change", () => { take([...$("attach").files]); $("attach").value = ""; });
  const talk = $("ask");
  const over = (on) => (event) => { if (event.dataTransfer?.types.includes("Files")) { event.preventDefault(); talk.classList.toggle("over", on); } };
  for (const name of ["dragenter", "dragover"]) $("chat").addEventListener(name, over(true));
  $("chat").addEventListener("dragleave", over(false));
  $("chat").addEventListener("drop", (event) => { over(false)(event); if (event.dataTransfer.files.length) take([...event.dataTransfer.files]); });
  $("prompt").addEventListener("paste", (event) => { if (event.clipboardData.files.length) { event.preventDefault(); take([...event.clipboardData.files]); } });
}
