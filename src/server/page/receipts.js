// Receipts, of answers and of numbers: where they stand in what someone has, what to ask a server so that it computes them again, and
// where the two differ.
import { sha256 } from "./sha256.js";

const kLink = 64;  // tokens
const kNumbers = ["/v1/decisions", "/v1/rerank", "/rerank", "/v1/score", "/score", "/v1/embeddings", "/pooling"];

export const isOfNumbers = (receipt) => receipt?.request?.endpoint != null;

// ---- Where they stand ----

const isReceipt = (value) => value?.invar_receipt != null;

// Events of a stream as the answer that they are.
function answerOf(events) {
  const choices = new Map();
  for (const event of events) {
    for (const choice of event.choices ?? []) {
      const index = choice.index ?? 0, one = choices.get(index) ?? { text: "", thought: false };
      choices.set(index, one);
      one.text += choice.delta?.content ?? choice.text ?? "";
      one.thought ||= choice.delta?.reasoning_content != null || choice.delta?.tool_calls != null;
      if (choice.receipt) one.receipt = choice.receipt;
    }
  }
  return { id: events.find((event) => event.id)?.id, choices: [...choices.values()] };
}

function textIn(choice) {
  const { message } = choice;
  if (choice.thought || message?.reasoning_content != null || message?.tool_calls?.length) return null;
  return choice.text ?? (typeof message?.content === "string" ? message.content : null);
}

// [{receipt, text, body}]: what the answer's text is beside it, if it is known, or the body of an answer of numbers.
function foundIn(value) {
  if (Array.isArray(value)) return value.flatMap(foundIn);
  if (!value || typeof value !== "object") return [];
  if (isReceipt(value)) return [{ receipt: value }];
  if (isReceipt(value.receipt)) return isOfNumbers(value.receipt) ? [{ receipt: value.receipt, body: value }] : [{ receipt: value.receipt, text: textIn(value) }];
  return [...foundIn(value.choices), ...foundIn(value.data), ...foundIn(value.response?.body)];
}

// The receipts in a file: {found, id}. It may be JSON, lines of JSON (files of batches), or a stream's events.
export function readAnswer(text) {
  const trimmed = text.trim();
  let values;
  try {
    values = [JSON.parse(trimmed)];
  } catch {
    const lines = trimmed.split("\n").map((line) => line.trim()).filter((line) => line && !/^(?:event|id|retry)?:/.test(line) && line !== "data: [DONE]"), isStream = lines.length > 0 && lines.every((line) => line.startsWith("data:"));
    try {
      values = lines.map((line) => JSON.parse(isStream ? line.slice(5) : line));
    } catch {
      throw new Error("expected JSON, lines of JSON or a stream's events, found other text");
    }
    if (isStream) values = [answerOf(values)];
  }
  return { found: values.flatMap(foundIn), id: values.find((value) => typeof value?.id === "string")?.id ?? null };
}

// ---- What to ask ----

// A receipt has numbers that may have a fraction, and the seed, as texts.
const numbersOf = (sampling) => Object.fromEntries(Object.entries(sampling).map(([name, value]) => [name, typeof value === "string" ? Number(value) : value]));

// The parts of a form that a completion can be held to. Thoughts alone change no token of an answer without stops and budget.
function formOf(form, stop) {
  if (!form) return null;
  const { thought, ...rest } = JSON.parse(form);
  if (thought && (Object.keys(rest).length || stop.length || thought.budget != null))
    throw new Error("a receipt of thoughts with a form, stop strings or a budget is checked by invar verify alone");
  return Object.keys(rest).length ? rest : null;
}

// The request that has this answer, as JSON text: a seed may be larger than a number of JavaScript. The receipt's stop tokens have
// the model's ends of sequence already.
export function requestOf(receipt, model) {
  const { prompt, sampling, stop, include_stop_str_in_output, skip_special_tokens, form } = receipt.request;
  const { logit_bias, bad_words, seed, ...rest } = sampling;
  if (bad_words.length) throw new Error("a receipt with bad words is checked by invar verify alone");
  if (!/^[0-9]+$/.test(seed)) throw new Error(`expected the receipt's seed as a text of digits, found ${JSON.stringify(seed)}`);
  const body = { ...numbersOf(rest), model: receipt.adapter ? receipt.model : model, prompt, ignore_eos: true, include_stop_str_in_output, skip_special_tokens,
    return_token_ids: true, logits_hash: true, logit_bias: Object.fromEntries(logit_bias.map(([token, bias]) => [token, Number(bias)])) };
  if (stop.length) body.stop = stop;
  if (!body.allowed_token_ids.length) delete body.allowed_token_ids;
  const held = formOf(form, stop);
  if (held?.json_object) body.response_format = { type: "json_object" };
  else if (held) body.structured_outputs = held;
  return `${JSON.stringify(body).slice(0, -1)},"seed":${seed}}`;
}

// [path, body] of a receipt of numbers. A path from a file is one of these and no other.
export function questionOf(receipt, model, signs) {
  const { endpoint, body } = receipt.request;
  if (!kNumbers.includes(endpoint)) throw new Error(`expected one of ${kNumbers.join(", ")} as the receipt's endpoint, found ${JSON.stringify(endpoint)}`);
  const { receipt: _, model: named, ...rest } = JSON.parse(body);
  return [endpoint, { ...rest, model: receipt.adapter ? named : model, ...(signs ? { receipt: true } : {}) }];
}

// ---- Where they differ: [name, whether they agree, said, found] ----

export function rowsOf(receipt, choice, engine) {
  const { answer } = receipt, said = answer.logits_hashes[answer.logits_hashes.length - 1];
  const at = answer.tokens.findIndex((token, i) => token !== choice.token_ids[i]);
  const tokens = at < 0 && answer.tokens.length === choice.token_ids.length;
  return [
    ...modelRows(receipt, engine),
    ["Tokens", tokens, at < 0 ? `${answer.tokens.length} tokens` : `token ${at + 1}: ${answer.tokens[at]}`, at < 0 ? `${choice.token_ids.length} tokens` : `${choice.token_ids[at] ?? "the end"}`],
    ["Logits", said === choice.logits_hash, said, choice.logits_hash],
    ["End", answer.finish_reason === choice.finish_reason, answer.finish_reason, choice.finish_reason],
  ];
}

const modelRows = (receipt, engine) => [
  ["Arithmetic", receipt.arithmetic === engine.identity, receipt.arithmetic, engine.identity],
  ["Weights", receipt.weights === engine.weights, receipt.weights, engine.weights],
];

export const textRow = (text, choice) => ["Text", text === choice.text, excerpt(text), excerpt(choice.text)];
const excerpt = (text) => text.length > 200 ? `${text.slice(0, 200)}…` : text;

// Members that are not those of the numbers: names and times of an answer.
const kOfOneAnswer = ["id", "created", "model", "receipt", "usage", "system_fingerprint"];

// `again`: the answer that was computed now. Its own receipt has the numbers; without it the answers are held beside each other.
export function numberRows(receipt, body, again, engine) {
  const rows = modelRows(receipt, engine);
  if (again.receipt) {
    const said = receipt.answer.numbers, found = again.receipt.answer.numbers, at = said.findIndex((number, i) => number !== found[i]);
    rows.push(["Numbers", at < 0 && said.length === found.length, at < 0 ? `${said.length} numbers` : `number ${at + 1}: ${said[at]}`, at < 0 ? `${found.length} numbers` : found[at] ?? "the end"]);
  }
  if (body) {
    const differing = Object.keys({ ...body, ...again }).filter((name) => !kOfOneAnswer.includes(name) && canonical(body[name] ?? null) !== canonical(again[name] ?? null));
    const show = (of) => differing.map((name) => `${name}: ${excerpt(JSON.stringify(of[name]) ?? "nothing")}`).join("; ") || "the same members";
    rows.push(["Answer", !differing.length, show(body), show(again)]);
  }
  return rows;
}

// ---- What a receipt says of itself ----

// Canonical JSON (RFC 8785) of what a receipt may hold.
export function canonical(value) {
  if (Array.isArray(value)) return `[${value.map(canonical).join(",")}]`;
  if (!value || typeof value !== "object") return JSON.stringify(value) ?? "null";
  return `{${Object.keys(value).sort().map((name) => `${JSON.stringify(name)}:${canonical(value[name])}`).join(",")}}`;
}

const bytesOf = (hex) => Uint8Array.from(hex.match(/../g) ?? [], (pair) => Number.parseInt(pair, 16));
const digest = (value) => sha256(new TextEncoder().encode(canonical(value)));

export function chainOf({ answer, chain, public_key, signature, ...head }) {
  const links = [];
  let link = digest(head);
  answer.logits_hashes.forEach((hash, i) => {
    const tokens = answer.tokens.slice(i * kLink, (i + 1) * kLink), isLast = i === answer.logits_hashes.length - 1;
    const parts = [bytesOf(link), new Uint8Array(Int32Array.from(tokens).buffer), bytesOf(hash), new TextEncoder().encode(isLast ? answer.finish_reason : "")];
    link = sha256(Uint8Array.from(parts.flatMap((part) => [...part])));
    links.push(link);
  });
  return links;
}

// The identity of everything but the weights of an adapter, as system_fingerprint is made.
export function fingerprintOf(receipt) {
  const { arithmetic, specification, weights, tokenizer, chat_template, defaults, adapter } = receipt;
  const members = { arithmetic, specification, weights, tokenizer, chat_template, defaults, ...(adapter ? { adapter } : {}) };
  return `${arithmetic}-${digest(members).slice(0, 16)}`;
}

// Null where this browser cannot tell: Ed25519 needs a secure origin.
async function isSigned({ signature, ...rest }) {
  if (!globalThis.crypto?.subtle) return null;
  try {
    const key = await crypto.subtle.importKey("raw", bytesOf(rest.public_key), { name: "Ed25519" }, false, ["verify"]);
    return await crypto.subtle.verify({ name: "Ed25519" }, key, bytesOf(signature), new TextEncoder().encode(canonical(rest)));
  } catch (error) {
    return error.name === "NotSupportedError" ? null : false;
  }
}

const linksOf = (chain) => `${chain.length} ${chain.length === 1 ? "link" : "links"}`;

export async function ownRows(receipt, reply, publicKey) {
  const rows = [];
  if (receipt.specification) {
    const said = fingerprintOf(receipt);
    rows.push(["Model", said === reply.system_fingerprint, said, reply.system_fingerprint]);
  }
  if (receipt.chain) {
    const chain = chainOf(receipt), at = chain.findIndex((link, i) => link !== receipt.chain[i]);
    rows.push(["Chain", at < 0 && chain.length === receipt.chain.length, at < 0 ? linksOf(receipt.chain) : `link ${at + 1}: ${receipt.chain[at] ?? "none"}`, at < 0 ? linksOf(chain) : chain[at]]);
  }
  if (!receipt.signature) return [...rows, ["Signature", null, "none", "not signed"]];
  const good = await isSigned(receipt), whose = publicKey === receipt.public_key ? "this server's key" : "another key than this server's";
  return [...rows, ["Signature", good, `by ${receipt.public_key.slice(0, 16)}…`, good == null ? "not checked: this needs https or localhost" : good ? `holds; ${whose}` : "is of another text"]];
}
