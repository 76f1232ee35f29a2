// Check: a receipt's answer is computed again by this server and compared.
import { $, el } from "./dom.js";
import { call, server } from "./api.js";
import { isOfNumbers, numberRows, ownRows, questionOf, readAnswer, requestOf, rowsOf, textRow } from "./receipts.js";

const kShown = 4000;  // letters
let run = null;

const count = (number, word) => `${number} ${word}${number === 1 ? "" : "s"}`;
const say = (text) => { $("check-state").textContent = text; };

// ---- One receipt ----

function confirm(receipt, rows, shown) {
  const wrong = rows.find(([, same]) => same === false), mark = (same) => same == null ? "–" : same ? "✓" : "✗";
  const of = isOfNumbers(receipt) ? `${count(receipt.answer.numbers.length, "number")} of ${receipt.request.endpoint}` : count(receipt.answer.tokens.length, "token");
  return el("article", { class: "board" },
    el("p", { class: "verdict" }, el("span", { class: wrong ? "badge bad" : "badge good" }, wrong ? `${wrong[0]} ${wrong[0].endsWith("s") ? "differ" : "differs"}` : "Confirmed"), ` ${receipt.id}, ${of}`),
    el("table", { class: "members" }, el("thead", {}, el("tr", {}, ...["what", "the receipt says", "computed again"].map((title) => el("th", { scope: "col" }, title)))),
      el("tbody", {}, ...rows.map(([name, same, said, found]) => el("tr", { class: same === false ? "wrong" : null }, el("th", { scope: "row" }, `${mark(same)} ${name}`), el("td", { class: "mono" }, said), el("td", { class: "mono" }, found))))),
    el("p", { class: "excerpt plain" }, shown));
}

async function checkAnswer({ receipt, text }, signal) {
  const reply = await call("POST", "/v1/completions", requestOf(receipt, server.engine.models[0]), { signal }), choice = reply.choices[receipt.choice];
  const rows = [...rowsOf(receipt, choice, server.engine), ...(text == null || receipt.request.form ? [] : [textRow(text, choice)]), ...await ownRows(receipt, reply, server.engine.receipts)];
  return confirm(receipt, rows, choice.text);
}

async function checkNumbers({ receipt, body }, signal) {
  const signs = !!server.engine.receipts;
  if (!signs && !body) throw new Error("expected the whole answer beside its receipt of numbers: a server without --receipt-key shows no numbers but those of an answer");
  const [path, question] = questionOf(receipt, server.engine.models[0], signs), again = await call("POST", path, question, { signal });
  const reply = { system_fingerprint: again.system_fingerprint ?? server.engine.system_fingerprint };
  return confirm(receipt, [...numberRows(receipt, body, again, server.engine), ...await ownRows(receipt, reply, server.engine.receipts)],
    JSON.stringify({ asked: { ...question, receipt: undefined, model: undefined }, answered: again.answers ?? again.results ?? again.data }, null, 1).slice(0, kShown));
}

// ---- What someone gives ----

// Receipts of an answer that has none in it, from the server's journal.
async function fromJournal(id, signal) {
  if (!id || !server.engine.journal) throw new Error("expected a receipt, or an answer that has one (ask for it with \"receipt\": true)");
  return (await call("GET", `/v1/receipts/${encodeURIComponent(id)}`, null, { signal })).data.map((receipt) => ({ receipt }));
}

async function check() {
  run?.abort();
  const { signal } = run = new AbortController();
  $("verdict").replaceChildren();
  say("Computing …");
  try {
    const { found, id } = readAnswer($("receipt").value);
    for (const [i, one] of (found.length ? found : await fromJournal(id, signal)).entries()) {
      if (found.length > 1) say(`Computing ${i + 1} of ${found.length} …`);
      $("verdict").append(await (isOfNumbers(one.receipt) ? checkNumbers : checkAnswer)(one, signal));
    }
    $("verdict").append(el("p", { class: "note" }, "The whole body of an answer, and the request beside it, are checked by ", el("code", {}, "invar verify"), ", which needs only the model and no server."));
    say("");
  } catch (error) {
    if (!signal.aborted) say(error instanceof TypeError ? `This is no receipt: ${error.message}` : error.message);
  }
}

// ---- One to try ----

const kStory = { prompt: "Once upon a time", max_tokens: 32, temperature: 0.8, seed: 7 };
const kQuestion = { input: "A fox ran over the hill.", questions: [{ id: "fox", type: "predicate", question: "Is it about a fox?" }] };

// Without a key nothing is signed; the answer can be computed again all the same.
async function unsigned() {
  const { identity, weights, models, context } = server.engine, { tokens } = await call("POST", "/tokenize", { model: models[0], prompt: kStory.prompt });
  const sampling = { n: 1, temperature: "0.8", top_p: "1", top_k: 0, min_p: "0", repetition_penalty: "1", presence_penalty: "0", frequency_penalty: "0", logit_bias: [], max_tokens: kStory.max_tokens,
    min_tokens: 0, stop_token_ids: [], allowed_token_ids: [], bad_words: [], ignore_eos: true, seed: "7" };
  const receipt = { invar_receipt: 1, id: "", created: 0, model: models[0], choice: 0, context, arithmetic: identity, weights,
    request: { prompt: tokens, sampling, stop: [], include_stop_str_in_output: false, skip_special_tokens: true, form: "" } };
  const reply = await call("POST", "/v1/completions", requestOf(receipt, models[0])), [choice] = reply.choices;
  return { ...receipt, id: reply.id, created: reply.created, answer: { tokens: choice.token_ids, finish_reason: choice.finish_reason, logits_hashes: [choice.logits_hash] } };
}

async function example(make) {
  say("Asking for one …");
  try {
    $("receipt").value = JSON.stringify(await make(), null, 1);
    say(server.engine.receipts ? "" : "This server has no --receipt-key, so this one is not signed.");
  } catch (error) {
    say(error.message);
  }
}

export function connected(engine) {
  $("try-decision").hidden = !engine.receipts;
}

export function begin() {
  $("check-form").addEventListener("submit", (event) => { event.preventDefault(); if (server.engine) check(); });
  $("receipt-file").addEventListener("change", async () => { $("receipt").value = await $("receipt-file").files[0].text(); if (server.engine) check(); });
  $("try-answer").addEventListener("click", () => server.engine && example(() => server.engine.receipts ? call("POST", "/v1/completions", { model: server.engine.models[0], ...kStory, receipt: true }) : unsigned()));
  $("try-decision").addEventListener("click", () => server.engine && example(() => call("POST", "/v1/decisions", { ...kQuestion, receipt: true })));
}
