// A message as it is shown: thoughts, text, calls of tools, files, and below them what is known of it and what can be done with it.
import { copy, el } from "./dom.js";
import { codeBlock, GrowingMarkdown } from "./markdown.js";
import { TokenView } from "./tokens.js";
import { patch } from "./tree.js";

class MarkdownView {
  constructor(text) {
    this.element = el("div", { class: "text md" });
    this.growing = new GrowingMarkdown();
    this.append(text);
  }

  append(text) { if (text) patch(this.element, this.growing.append(text)); }
}

class PlainView {
  constructor(text, name = "text") { this.element = el("div", { class: `${name} plain` }, text); }
  append(text) { if (text) this.element.append(text); }
}

function pretty(text) {
  try { return JSON.stringify(JSON.parse(text), null, 2); } catch { return text; }
}

const kNames = { user: "You", assistant: "The model", tool: "Results of tools" };

export class MessageView {
  // `below`: what stands under it, made anew by `end`.
  constructor(node, { asTokens, busy, below }) {
    Object.assign(this, { node, below, thoughts: null, callBox: null });
    const isTokens = asTokens && node.role === "assistant" && node.tokens.length > 0;
    this.text = isTokens || (asTokens && busy && node.role === "assistant") ? new TokenView(node, true) : node.role === "assistant" ? new MarkdownView(node.text) : new PlainView(node.text);
    this.box = el("article", { class: `message ${node.role}`, "aria-label": kNames[node.role] }, this.text.element);
    if (busy) this.box.setAttribute("aria-busy", "true");
    if (node.role === "tool") this.results();
    if (node.files.length) this.files();
    if (node.thought) this.think(node.thought);
    if (node.calls.length) this.calls();
    this.box.append(...below());
  }

  // Adds the text that has come since the last time.
  append({ text, thought, tokens, hasCalls }) {
    if (thought) this.think(thought);
    if (text || tokens.length) this.text.append(text, tokens);
    if (hasCalls) this.calls();
    if (this.thoughts && this.node.text && !this.thoughts.done) this.thought();
  }

  think(text) {
    if (!this.thoughts) {
      this.thoughts = { view: new PlainView("", "thought"), summary: el("summary", {}), done: false };
      this.box.prepend(el("details", { class: "thoughts" }, this.thoughts.summary, this.thoughts.view.element));
    }
    this.thoughts.view.append(text);
    this.thought();
  }

  thought() {
    const { text, thought, meta } = this.node, isOver = !!text || meta.state === "done" || meta.state === "stopped";
    const seconds = meta.thought >= 100 ? `${(meta.thought / 1000).toFixed(1)} s, ` : "";
    this.thoughts.done = isOver;
    this.thoughts.summary.textContent = isOver ? `Thoughts (${seconds}${thought.split(/\s+/).filter(Boolean).length} words)` : "Thinking …";
  }

  calls() {
    this.callBox ??= this.text.element.parentNode.insertBefore(el("div", { class: "calls" }), this.text.element.nextSibling);
    this.callBox.replaceChildren(...this.node.calls.map((call) => {
      const box = el("div", {});
      patch(box, [codeBlock("json", pretty(call.arguments))]);
      return el("details", { class: "call", open: true }, el("summary", {}, "Calls ", el("code", {}, call.name)), box);
    }));
  }

  results() {
    this.text.element.replaceWith(this.text.element = el("div", { class: "text plain" }, ...this.node.results.map((one) =>
      el("details", { class: "call", open: true }, el("summary", {}, "Result of ", el("code", {}, this.nameOf(one.id))), el("pre", { tabindex: 0 }, one.content)))));
  }

  nameOf(id) { return this.node.parent?.calls?.find((call) => call.id === id)?.name ?? id; }

  files() {
    this.box.append(...this.node.files.map((file) =>
      el("details", { class: "file" }, el("summary", {}, `${file.name} `, el("span", { class: "note" }, sizeOf(file.text))), el("pre", { tabindex: 0 }, file.text))));
  }

  // The message is whole. Its text stays as it stands, since laying it out again would cost as much as all before.
  end() {
    for (const old of this.box.querySelectorAll(":scope > .below")) old.remove();
    this.box.append(...this.below());
    this.box.removeAttribute("aria-busy");
    if (this.thoughts) this.thought();
  }
}

export const sizeOf = (text) => text.length < 1000 ? `${text.length} letters` : `${(text.length / 1000).toFixed(text.length < 10_000 ? 1 : 0)} thousand letters`;

// A file's text within a message: in a fence that is longer than any within.
export function fenced({ name, text }) {
  const longest = Math.max(2, ...(text.match(/`+/g) ?? []).map((run) => run.length)), fence = "`".repeat(longest + 1);
  return `File ${name}:\n${fence}\n${text.replace(/\n$/, "")}\n${fence}`;
}

// Buttons "Copy" of blocks of code.
export function copiesCode(box) {
  box.addEventListener("click", (event) => {
    const button = event.target.closest?.("button.copy");
    if (button) copy(button.closest(".code").querySelector("code").textContent, button);
  });
}
