// An answer's text; or its tokens, each tinted by its probability, with the alternatives that the model saw.
import { el } from "./dom.js";

const percent = (logprob) => { const p = Math.exp(logprob) * 100; return p >= 99.95 ? "100 %" : p >= 0.1 ? `${p.toFixed(1)} %` : "< 0.1 %"; };
const visible = (text) => text.replace(/\n/g, "↵").replace(/\t/g, "⇥") || "∅";
// Five steps from certain to surprising.
const tint = (logprob) => [-0.105, -0.51, -1.2, -2.3].findIndex((edge) => logprob >= edge);

export class TokenView {
  constructor(node, asTokens) {
    this.asTokens = asTokens && node.tokens.length + (node.text ? 0 : 1) > 0;
    this.element = el("div", { class: "text" });
    this.count = 0;
    if (!this.asTokens) return this.element.append(node.text);
    this.element.classList.add("tokens");
    this.element.setAttribute("role", "group");
    this.element.addEventListener("mouseover", (event) => this.point(event.target));
    this.element.addEventListener("focusin", (event) => this.point(event.target));
    this.element.addEventListener("click", (event) => event.target.focus?.());
    this.element.addEventListener("keydown", (event) => this.move(event));
    this.element.addEventListener("mouseleave", () => this.hide());
    this.element.addEventListener("focusout", () => this.hide());
    this.append("", node.tokens);
  }

  append(text, tokens) {
    if (!this.asTokens || !tokens.length) return text && this.element.append(text);
    this.element.append(...tokens.map((token) => {
      const at = tint(token.logprob);
      const span = el("span", { class: `t p${at < 0 ? 4 : at}`, tabindex: this.count++ ? -1 : 0 }, token.text);
      span.token = token;
      return span;
    }));
  }

  move(event) {
    const to = { ArrowRight: "nextElementSibling", ArrowLeft: "previousElementSibling" }[event.key];
    const next = to && event.target[to];
    if (!next?.token) return;
    event.preventDefault();
    event.target.tabIndex = -1;
    next.tabIndex = 0;
    next.focus();
  }

  point(span) {
    if (!span.token) return;
    this.hide();
    const { token } = span, top = token.top.some(([text]) => text === token.text) ? token.top : [[token.text, token.logprob], ...token.top];
    const rows = top.map(([text, logprob]) => el("tr", { class: text === token.text ? "own" : null },
      el("td", { class: "mono" }, visible(text)), el("td", {}, percent(logprob)), el("td", { class: "bar" }, meter(logprob)), el("td", { class: "mono" }, logprob.toFixed(4))));
    this.tip = el("table", { class: "tip", role: "tooltip", id: "tip" },
      el("thead", {}, el("tr", {}, ...["token", "probability", "share", "log"].map((title) => el("th", { scope: "col" }, title)))), el("tbody", {}, ...rows));
    document.body.append(this.tip);
    span.setAttribute("aria-describedby", "tip");
    const at = span.getClientRects()[0] ?? span.getBoundingClientRect(), box = this.tip.getBoundingClientRect();
    const below = at.bottom + 6 + box.height < innerHeight;
    this.tip.style.left = `${Math.max(8, Math.min(at.left, innerWidth - box.width - 8))}px`;
    this.tip.style.top = `${below ? at.bottom + 6 : Math.max(8, at.top - box.height - 6)}px`;
  }

  hide() { this.tip?.remove(); this.tip = null; }
}

function meter(logprob) {
  const fill = el("i");
  fill.style.width = `${Math.exp(logprob) * 100}%`;
  return fill;
}
