// Check: a receipt's answer is computed again by this server and compared.
import { $, el } from "./dom.js";
import { call, server } from "./api.js";

let run = null;

const findReceipt = (value) => value?.invar_receipt ? value : [...(value?.choices ?? []).map((choice) => choice.receipt), ...(value?.data ?? [])].find((one) => one?.invar_receipt);

// A receipt has numbers that may have a fraction, and the seed, as texts.
const numbersOf = (sampling) => Object.fromEntries(Object.entries(sampling).map(([name, value]) => [name, typeof value === "string" ? Number(value) : value]));

// The request that has this answer, as JSON text: a seed may be larger than a number of JavaScript. The receipt's stop tokens have
// the model's ends of sequence already.
export function requestOf(receipt, model) {
  const { prompt, sampling, stop, include_stop_str_in_output, skip_special_tokens, form } = receipt.request;
  const { logit_bias, bad_words, seed, ...rest } = sampling;
  if (bad_words.length) throw new Error("a receipt with bad words is checked by invar verify alone");
  if (!/^[0-9]+$/.test(seed)) throw new Error(`expected the receipt's seed as a text of digits, found ${JSON.stringify(seed)}`);
  const body = { ...numbersOf(rest), model, prompt, ignore_eos: true, include_stop_str_in_output, skip_special_tokens,
    return_token_ids: true, logits_hash: true, logit_bias: Object.fromEntries(logit_bias.map(([token, bias]) => [token, Number(bias)])) };
  if (stop.length) body.stop = stop;
  if (!body.allowed_token_ids.length) delete body.allowed_token_ids;
  const held = form ? JSON.parse(form) : null;
  if (held?.json_object) body.response_format = { type: "json_object" };
  else if (held) body.structured_outputs = held;
  return `${JSON.stringify(body).slice(0, -1)},"seed":${seed}}`;
}

// What the receipt says beside what was computed: [name, whether they agree, said, found].
export function rowsOf(receipt, choice, engine) {
  const { answer } = receipt, said = answer.logits_hashes[answer.logits_hashes.length - 1];
  const at = answer.tokens.findIndex((token, i) => token !== choice.token_ids[i]);
  const tokens = at < 0 && answer.tokens.length === choice.token_ids.length;
  return [
    ["Arithmetic", receipt.arithmetic === engine.identity, receipt.arithmetic, engine.identity],
    ["Weights", receipt.weights === engine.weights, receipt.weights, engine.weights],
    ["Tokens", tokens, at < 0 ? `${answer.tokens.length} tokens` : `token ${at + 1}: ${answer.tokens[at]}`, at < 0 ? `${choice.token_ids.length} tokens` : `${choice.token_ids[at] ?? "the end"}`],
    ["Logits", said === choice.logits_hash, said, choice.logits_hash],
    ["End", answer.finish_reason === choice.finish_reason, answer.finish_reason, choice.finish_reason],
  ];
}

function show(receipt, choice) {
  const all = rowsOf(receipt, choice, server.engine), good = all.every(([, same]) => same);
  $("verdict").replaceChildren(
    el("p", { class: "verdict" }, el("span", { class: good ? "badge good" : "badge bad" }, good ? "Confirmed" : `${all.find(([, same]) => !same)[0]} differ`),
      ` ${receipt.id}, ${receipt.answer.tokens.length} tokens`),
    el("table", { class: "members" }, el("thead", {}, el("tr", {}, ...["", "the receipt says", "computed again"].map((title) => el("th", { scope: "col" }, title)))),
      el("tbody", {}, ...all.map(([name, same, said, found]) => el("tr", {}, el("th", { scope: "row" }, `${same ? "✓" : "✗"} ${name}`), el("td", { class: "mono" }, said), el("td", { class: "mono" }, found))))),
    el("p", { class: "excerpt" }, choice.text),
    el("p", { class: "note" }, "The signature, the chain and the digests of tokenizer and template are checked by ", el("code", {}, "invar verify"), ", which needs only the model."));
}

async function check() {
  run?.abort();
  const { signal } = run = new AbortController();
  $("verdict").replaceChildren();
  $("check-state").textContent = "Computing …";
  try {
    const receipt = findReceipt(JSON.parse($("receipt").value));
    if (!receipt) throw new Error("expected a receipt, or an answer that has one");
    const reply = await call("POST", "/v1/completions", requestOf(receipt, server.engine.models[0]), { signal });
    show(receipt, reply.choices[receipt.choice]);
    $("check-state").textContent = "";
  } catch (error) {
    if (!signal.aborted) $("check-state").textContent = error instanceof SyntaxError ? "This is not JSON." : error.message;
  }
}

export function begin() {
  $("check-form").addEventListener("submit", (event) => { event.preventDefault(); if (server.engine) check(); });
  $("receipt-file").addEventListener("change", async () => { $("receipt").value = await $("receipt-file").files[0].text(); });
}
