// The parameters of a request, and sets of them by name.
import { $, ask, el, number, remember, toast } from "./dom.js";

const kTexts = ["temperature", "seed", "top_p", "top_k", "min_p", "max_tokens", "top_logprobs", "system", "stops", "tools"], kSwitches = ["logprobs", "plain"];
const kInPreset = ["temperature", "top_p", "top_k", "min_p", "max_tokens", "system", "stops", "tools"];
const kOwn = {  // that every browser has
  "Short answers": { system: "Answer in as few words as are needed. Do not repeat the question." },
  "Explains code": { system: "You explain code to a programmer: first what it is for, then how it works, then what may go wrong. Show code in fenced blocks.", temperature: "0.2" },
  "Always the same": { temperature: "0" },
};
let changed = () => {};

export const settings = () => ({ ...Object.fromEntries(kTexts.map((name) => [name, $(name).value])), ...Object.fromEntries(kSwitches.map((name) => [name, $(name).checked])) });

// Fills the fields; what `values` does not have stays as it is.
export function fill(values) {
  for (const name of kTexts) if (typeof values[name] === "string") $(name).value = values[name];
  for (const name of kSwitches) if (typeof values[name] === "boolean" && !$(name).disabled) $(name).checked = values[name];
}

// The fields of a request that are numbers and were given.
export function sampling() {
  const body = {};
  for (const name of ["temperature", "top_p", "top_k", "min_p", "max_tokens"]) if (number(name) != null) body[name] = number(name);
  const stops = $("stops").value.split("|").filter(Boolean);
  if (stops.length) body.stop = stops;
  return body;
}

// Functions as OpenAI's API has them; a list of the functions alone will do.
export function toolsOf(text) {
  if (!text.trim()) return null;
  let value;
  try { value = JSON.parse(text); } catch (error) { throw new Error(`Tools: expected JSON: ${error.message}`); }
  return [value].flat().map((tool) => {
    const of = tool?.function ?? tool;
    if (typeof of?.name !== "string") throw new Error("Tools: expected functions with a name, such as {\"name\": \"weather\", \"parameters\": {…}}");
    return tool.function ? tool : { type: "function", function: of };
  });
}

// An empty field shows in grey the value that counts: the model's directory says it.
export function showDefaults(params) {
  for (const name of ["temperature", "top_p", "top_k", "min_p"]) {
    const value = params?.[name];
    if (!Number.isFinite(value)) continue;
    const off = (name === "top_k" && value <= 0) || (name === "top_p" && value >= 1) || (name === "min_p" && value <= 0);
    $(name).placeholder = off ? "off" : String(Number(value.toPrecision(4)));
  }
}

// ---- Presets ----

const kStore = "presets";
function kept() {
  try { return Object(JSON.parse(localStorage.getItem(kStore)) ?? {}); } catch { return {}; }
}

function showPresets(chosen = "") {
  const own = Object.keys(kept()), option = (name) => el("option", { value: name, selected: name === chosen }, name);
  $("preset").replaceChildren(el("option", { value: "" }, "Choose …"), ...own.map(option), ...Object.keys(kOwn).filter((name) => !own.includes(name)).map(option));
  $("preset-remove").disabled = !own.includes(chosen);
}

function use(name) {
  const values = kept()[name] ?? kOwn[name];
  if (values) fill({ ...Object.fromEntries(kInPreset.map((field) => [field, ""])), ...values });
  $("preset-remove").disabled = !Object.hasOwn(kept(), name);
  changed();
}

async function keepPreset() {
  const name = await ask("Name of the preset", $("preset").value);
  if (!name) return;
  const now = settings();
  const isKept = remember(kStore, JSON.stringify({ ...kept(), [name]: Object.fromEntries(kInPreset.map((field) => [field, now[field]])) }));
  if (!isKept) return toast("The browser does not keep the preset.");
  showPresets(name);
}

function removePreset() {
  const { [$("preset").value]: _, ...rest } = kept();
  remember(kStore, JSON.stringify(rest));
  showPresets();
  $("preset").focus();
}

export function begin(onChange) {
  changed = onChange;
  for (const name of [...kTexts, ...kSwitches]) $(name).addEventListener("change", () => changed());
  $("preset").addEventListener("change", () => use($("preset").value));
  $("preset-save").addEventListener("click", keepPreset);
  $("preset-remove").addEventListener("click", removePreset);
  showPresets();
}
