// Facts of an answer: how long it took, its seed and hash, how full the context is, and why there is no more of it.
import { copy, el } from "./dom.js";
import { server } from "./api.js";

export const context = () => server.engine?.context ?? 0;

// The sibling with the same request and seed, if there is one: its bits must be the same.
function twin(node) {
  return node.parent.children.find((other) => other !== node && other.meta.hash && other.meta.seed === node.meta.seed &&
    other.meta.request === node.meta.request && other.meta.fingerprint === node.meta.fingerprint);
}

export function facts(node) {
  const { meta } = node, parts = [];
  if (meta.tokens != null) {
    const seconds = (meta.took - meta.first) / 1000;
    parts.push(`${meta.tokens} tokens`);
    if (!meta.isResumed && meta.tokens > 1 && seconds > 0) parts.push(`${((meta.tokens - 1) / seconds).toFixed(0)} per second`);
    if (!meta.isResumed && meta.first != null) parts.push(`first after ${Math.round(meta.first)} ms`);
  }
  if (meta.seed != null) parts.push(`seed ${meta.seed}`);
  const why = { stop: "ended", length: meta.isFull ? "the context is full" : "cut at max tokens", tool_calls: "waits for its calls" };
  if (meta.finish) parts.push(why[meta.finish] ?? meta.finish);
  if (meta.state === "stopped") parts.push("stopped");
  if (meta.prompt != null && context()) parts.push(`${(meta.prompt + meta.tokens).toLocaleString("en")} of ${context().toLocaleString("en")} of the context`);
  const line = el("div", { class: "facts below" }, parts.join(" · "));
  if (meta.hash) {
    line.append(" · ", el("button", { class: "quiet mono", title: `Logits hash ${meta.hash}: copy`, onclick: (e) => copy(meta.hash, e.target) }, meta.hash.slice(0, 12)));
    const other = twin(node);
    if (other) line.append(" ", el("span", { class: other.meta.hash === meta.hash ? "badge good" : "badge bad" },
      other.meta.hash === meta.hash ? "same bits as before" : "other bits than before"));
  }
  return line;
}

const sentence = (text) => `${text[0].toUpperCase()}${text.slice(1)}${/[.!?]$/.test(text) ? "" : "."}`;

// Why there is no answer or not all of one, and what can be done.
export function notes(node, { leaveOut, fresh }) {
  const { meta } = node;
  if (meta.isFull)
    return [el("div", { class: "error below" }, el("strong", {}, "The context is full. "), meta.error ? sentence(meta.error) : `The conversation and this answer fill all ${context()} tokens that the model sees.`,
      el("div", { class: "row" }, el("button", { onclick: () => leaveOut(node) }, "Leave out the oldest turns"), el("button", { onclick: fresh }, "Begin anew")))];
  return meta.error ? [el("p", { class: "error below" }, sentence(meta.error))] : [];
}
