// The request for an answer, and its events.
import { $ } from "./dom.js";
import { server } from "./api.js";
import { fenced } from "./message.js";
import { sampling, settings, toolsOf } from "./settings.js";

function messageOf(node) {
  if (node.role === "tool") return node.results.map((one) => ({ role: "tool", tool_call_id: one.id, content: one.content }));
  const content = [...node.files.map(fenced), node.text].filter(Boolean).join("\n\n"), message = { role: node.role, content };
  if (node.calls.length) message.tool_calls = node.calls.map((one) => ({ id: one.id, type: "function", function: { name: one.name, arguments: one.arguments } }));
  return [message];
}

// [path, body] of the answer to messages.
export function requestFor(messages, seed) {
  const now = settings();
  const body = { model: $("model").value, stream_options: { include_usage: true }, logits_hash: true, ...sampling() };
  const wanted = seed ?? (now.seed.trim() || null);
  if (wanted != null) body.seed = Number(wanted);
  if (server.engine?.receipts) body.receipt = true;
  const top = now.top_logprobs === "" ? 0 : Number(now.top_logprobs);
  if (now.logprobs) Object.assign(body, now.plain ? { logprobs: top } : { logprobs: true, top_logprobs: top });
  if (now.plain) {
    body.max_tokens ??= 256;
    return ["/v1/completions", { ...body, prompt: messages.flatMap(messageOf).map((message) => message.content).join("\n") }];
  }
  const tools = toolsOf(now.tools), system = now.system.trim();
  if (tools) body.tools = tools;
  return ["/v1/chat/completions", { ...body, messages: [...(system ? [{ role: "system", content: system }] : []), ...messages.flatMap(messageOf)] }];
}

export function tokensOf(logprobs) {
  if (logprobs?.content) return logprobs.content.map((t) => ({ text: t.token, logprob: t.logprob, top: t.top_logprobs.map((o) => [o.token, o.logprob]) }));
  return (logprobs?.tokens ?? []).map((text, i) => ({ text, logprob: logprobs.token_logprobs[i], top: Object.entries(logprobs.top_logprobs[i] ?? {}) }));
}

// Pieces of calls, as a stream's event has them.
export function takeCalls(node, deltas) {
  for (const { index, id, function: of } of deltas) {
    const one = node.calls[index] ??= { id: "", name: "", arguments: "" };
    if (id) one.id = id;
    one.name += of?.name ?? "";
    one.arguments += of?.arguments ?? "";
  }
}
