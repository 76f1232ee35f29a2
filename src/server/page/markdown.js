// Markdown as a tree of elements: [tag, attributes, ...children] or text. Its allowed elements are decided in one
// place, `patch` of tree.js; here HTML is text, an image is a link, and a link leads to the web or to a mailbox.
import { colours } from "./colours.js";
import { maths } from "./maths.js";

const kDepth = 16;    // of lists and quotes within each other; what is deeper is text
const kNested = 32;   // of emphasis
const kMaths = 2000;  // letters of a formula at most

// ---- Blocks ----

const kFence = /^ {0,3}(`{3,}|~{3,})[ \t]*([^`\n]*)$/;
const kHeading = /^ {0,3}(#{1,6})(?:[ \t]+(.*?))?(?:[ \t]+#+)?[ \t]*$/;
const kRule = /^ {0,3}(?:(?:\*[ \t]*){3,}|(?:-[ \t]*){3,}|(?:_[ \t]*){3,})$/;
const kQuote = /^ {0,3}> ?/;
const kItem = /^( {0,3})([-*+]|\d{1,9}[.)])([ \t]+|$)/;
const kDelimiters = /^ {0,3}\|?[ \t]*:?-+:?[ \t]*(?:\|[ \t]*:?-+:?[ \t]*)*\|?[ \t]*$/;
const kFormula = /^ {0,3}(\$\$|\\\[)/;
const blank = (line) => /^[ \t]*$/.test(line);
const indent = (line) => line.length - line.trimStart().length;

function isRow(lines, i) {
  const next = lines[i + 1];
  return next != null && lines[i].includes("|") && next.includes("-") && kDelimiters.test(next) && cells(lines[i]).length === cells(next).length;
}

// Whether a line ends the paragraph before it.
const interrupts = (line) => kFence.test(line) || kHeading.test(line) || kRule.test(line) || kQuote.test(line) || kFormula.test(line) ||
  /^ {0,3}(?:[-*+]|1[.)])[ \t]+\S/.test(line);

// [{type, from, to, ...}], by lines; a block but the last stays as it is whatever lines are added.
function blocksOf(lines, depth) {
  const blocks = [];
  for (let i = 0; i < lines.length;) {
    if (blank(lines[i])) { ++i; continue; }
    const block = blockAt(lines, i, depth);
    blocks.push({ ...block, from: i });
    i = block.to;
  }
  return blocks;
}

function blockAt(lines, i, depth) {
  const line = lines[i];
  let found = kFence.exec(line);
  if (found) return fence(lines, i, found);
  if ((found = kHeading.exec(line))) return { type: "heading", level: found[1].length, text: found[2] ?? "", to: i + 1 };
  if (kFormula.test(line)) return formula(lines, i);
  if (kRule.test(line)) return { type: "rule", to: i + 1 };
  if (depth < kDepth && kQuote.test(line)) return quote(lines, i);
  if (depth < kDepth && kItem.test(line)) return list(lines, i);
  if (isRow(lines, i)) return table(lines, i);
  let to = i + 1;
  while (to < lines.length && !blank(lines[to]) && !interrupts(lines[to]) && !isRow(lines, to)) ++to;
  return { type: "paragraph", lines: lines.slice(i, to), to };
}

function fence(lines, i, [, mark, words]) {
  const margin = indent(lines[i]), end = new RegExp(`^ {0,3}${mark[0]}{${mark.length},}[ \\t]*$`);
  let to = i + 1;
  while (to < lines.length && !end.test(lines[to])) ++to;
  const code = lines.slice(i + 1, to).map((line) => line.slice(Math.min(margin, indent(line))));
  return { type: "code", language: words.trim().split(/[\s{]/)[0].toLowerCase(), text: code.join("\n"), to: Math.min(to + 1, lines.length) };
}

// Ends with its mark or before a blank line.
function formula(lines, i) {
  const [, open] = kFormula.exec(lines[i]), close = open === "$$" ? "$$" : "\\]";
  let text = lines[i].trimStart().slice(open.length), to = i + 1;
  for (; !text.includes(close) && to < lines.length && !blank(lines[to]); ++to) text += `\n${lines[to]}`;
  const end = text.indexOf(close);
  const rest = end < 0 ? "" : text.slice(end + close.length);
  // With words behind it, it is a part of a paragraph.
  if (rest.trim()) return { type: "paragraph", lines: lines.slice(i, to), to };
  return { type: "formula", text: end < 0 ? text : text.slice(0, end), to };
}

function quote(lines, i) {
  const inner = [];
  let to = i;
  for (; to < lines.length && !blank(lines[to]); ++to) {
    if (kQuote.test(lines[to])) inner.push(lines[to].replace(kQuote, ""));
    else if (inner.at(-1).trim() && !interrupts(lines[to])) inner.push(lines[to]);
    else break;
  }
  return { type: "quote", lines: inner, to };
}

const kindOf = (marker) => /\d/.test(marker) ? marker.at(-1) : marker;

function list(lines, i) {
  const [, , first] = kItem.exec(lines[i]), items = [];
  let to = i, loose = false, gap = false;
  while (to < lines.length) {
    const found = kItem.exec(lines[to]);
    if (!found || kindOf(found[2]) !== kindOf(first) || kRule.test(lines[to])) break;
    if (gap) loose = true;
    const [head, margin, marker, space] = found, width = space.length > 4 ? margin.length + marker.length + 1 : head.length + (space ? 0 : 1);
    const item = [lines[to].slice(Math.min(width, lines[to].length))], needed = Math.min(width, margin.length + 2);
    gap = false;
    for (++to; to < lines.length; ++to) {
      const line = lines[to];
      if (blank(line)) { item.push(""); gap = true; continue; }
      const deep = indent(line.replace(/\t/g, "    ")) >= needed;
      if (!deep && (gap || kItem.test(line) || interrupts(line))) break;
      if (gap) loose ||= item.at(-1) === "" && !kItem.test(line.trimStart());
      if (deep) gap = false;
      item.push(deep ? line.replace(/^\t/, "    ").slice(Math.min(width, indent(line.replace(/^\t/, "    ")))) : line.trimStart());
    }
    items.push(item);
  }
  const start = /\d/.test(first) ? Number.parseInt(first, 10) : null;
  return { type: "list", items, start, loose, to };
}

function cells(line) {
  const inner = line.trim().replace(/^\|/, "").replace(/(^|[^\\])\|$/, "$1"), all = [""];
  for (let i = 0; i < inner.length; ++i) {
    if (inner[i] === "\\" && inner[i + 1] === "|") { all[all.length - 1] += "|"; ++i; }
    else if (inner[i] === "|") all.push("");
    else all[all.length - 1] += inner[i];
  }
  return all.map((cell) => cell.trim());
}

function table(lines, i) {
  const sides = cells(lines[i + 1]).map((cell) => cell.endsWith(":") ? (cell.startsWith(":") ? "middle" : "right") : null);
  let to = i + 2;
  while (to < lines.length && !blank(lines[to]) && !interrupts(lines[to])) ++to;
  const rows = lines.slice(i + 2, to).map((line) => { const row = cells(line); return sides.map((_, at) => row[at] ?? ""); });
  return { type: "table", head: cells(lines[i]), sides, rows, to };
}

// ---- Blocks as elements ----

function shown(block, depth) {
  switch (block.type) {
    case "heading": return [`h${Math.min(6, block.level + 1)}`, {}, ...inline(block.text)];  // h1 is the page's
    case "rule": return ["hr", {}];
    case "code": return codeBlock(block.language, block.text);
    case "formula": return maths(block.text.slice(0, kMaths), true);
    case "quote": return ["blockquote", {}, ...tree(block.lines, depth + 1)];
    case "list": return [block.start == null ? "ul" : "ol", block.start > 1 ? { start: block.start } : {}, ...block.items.map((item) => listItem(item, block.loose, depth))];
    case "table": {
      const row = (tag, texts) => ["tr", {}, ...texts.map((text, i) => [text ? tag : "td", block.sides[i] ? { class: block.sides[i] } : {}, ...inline(text)])];
      return ["div", { class: "scrolls", tabindex: 0 }, ["table", {}, ["thead", {}, row("th", block.head)], ["tbody", {}, ...block.rows.map((texts) => row("td", texts))]]];
    }
    default: return ["p", {}, ...inline(block.lines.map((line) => line.trimStart()).join("\n").trimEnd())];
  }
}

export function codeBlock(language, text) {
  return ["div", { class: "code" }, ["div", { class: "code-head" }, ["span", {}, language || "text"], ["button", { class: "quiet copy", type: "button" }, "Copy"]],
    ["pre", { tabindex: 0 }, ["code", {}, ...colours(language, text)]]];
}

function listItem(lines, loose, depth) {
  const task = /^\[([ xX])\][ \t]+/.exec(lines[0]);
  if (task) lines = [lines[0].slice(task[0].length), ...lines.slice(1)];
  const inner = blocksOf(lines, depth + 1).flatMap((block) => {
    const one = shown(block, depth + 1);
    return block.type === "paragraph" && !loose ? one.slice(2) : [one];
  });
  return task ? ["li", { class: "task" }, ["span", { class: "box" }, task[1] === " " ? "☐" : "☑"], " ", ...inner] : ["li", {}, ...inner];
}

const tree = (lines, depth) => blocksOf(lines, depth).map((block) => shown(block, depth));

// ---- Words ----

const kEntities = { amp: "&", lt: "<", gt: ">", quot: '"', nbsp: "\u00a0", apos: "'", ndash: "–", mdash: "—", hellip: "…", copy: "©", times: "×" };
const kStops = /[\\`*_~[\]!<$&\n]|https?:\/\//g;
const safe = (url) => {
  try { return /^(?:https?:\/\/|mailto:)[^\s\p{Cc}\p{Cs}<>]+$/iu.test(url) && /^(?:https?|mailto):$/.test(new URL(url).protocol); } catch { return false; }
};
const isPunctuation = (c) => /[\p{P}\p{S}]/u.test(c);
const isSpace = (c) => c === "" || /\s/.test(c);

function link(url, children) {
  return ["a", { href: url, title: url, target: "_blank", rel: "noopener noreferrer nofollow" }, ...children];
}

// Where the runs of backticks are, by their length, the first one last: a search for each would take the square of the text's length.
function ticksOf(text) {
  const all = new Map();
  for (const { 0: run, index } of [...text.matchAll(/`+/g)].reverse()) {
    if (!all.has(run.length)) all.set(run.length, []);
    all.get(run.length).push(index);
  }
  return all;
}

class Inline {
  constructor(text) {
    Object.assign(this, { text, at: 0, out: [], brackets: [], ticks: null });
  }

  parse() {
    const { text } = this;
    while (this.at < text.length) {
      kStops.lastIndex = this.at;
      const stop = kStops.exec(text), to = stop ? stop.index : text.length;
      if (to > this.at) this.out.push(text.slice(this.at, to));
      this.at = to;
      if (stop) this.take(stop[0]);
    }
    return emphasised(this.out);
  }

  // Takes what begins with `mark`; text where nothing does.
  take(mark) {
    const taken = mark.startsWith("http") ? this.url() : {
      "\\": () => this.escape(), "`": () => this.code(), "*": () => this.run(), "_": () => this.run(), "~": () => this.run(), "[": () => this.open(1),
      "!": () => this.text[this.at + 1] === "[" && this.open(2), "]": () => this.close(), "<": () => this.angle(), "$": () => this.dollar(), "&": () => this.entity(),
      "\n": () => this.line() }[mark]();
    if (!taken) this.push(mark, mark.length);
  }

  push(node, length) {
    this.out.push(node);
    this.at += length;
    return true;
  }

  line() {
    const last = this.out.at(-1);
    if (typeof last === "string") this.out[this.out.length - 1] = last.replace(/[ \t\\]+$/, "");
    return this.push(["br", {}], 1);
  }

  escape() {
    const next = this.text[this.at + 1] ?? "";
    if (next === "(" || next === "[") {
      const end = this.text.slice(this.at, this.at + kMaths).indexOf(next === "(" ? "\\)" : "\\]", 2);
      if (end > 0) return this.push(maths(this.text.slice(this.at + 2, this.at + end), next === "["), end + 2);
    }
    return /[!-/:-@[-`{-~]/.test(next) && this.push(next, 2);
  }

  code() {
    let from = this.at;
    while (this.text[from] === "`") ++from;
    const length = from - this.at;
    this.ticks ??= ticksOf(this.text);
    const all = this.ticks.get(length) ?? [];
    while (all.length && all.at(-1) < from) all.pop();
    if (!all.length) return this.push("`".repeat(length), length);
    const to = all.pop(), inner = this.text.slice(from, to).replace(/\n/g, " ");
    return this.push(["code", {}, /^ .*[^ ].* $/.test(inner) ? inner.slice(1, -1) : inner], to + length - this.at);
  }

  run() {
    const c = this.text[this.at];
    let to = this.at;
    while (this.text[to] === c) ++to;
    const before = this.text[this.at - 1] ?? "", after = this.text[to] ?? "", count = to - this.at;
    const left = !isSpace(after) && (!isPunctuation(after) || isSpace(before) || isPunctuation(before));
    const right = !isSpace(before) && (!isPunctuation(before) || isSpace(after) || isPunctuation(after));
    const opens = left && (c !== "_" || !right || isPunctuation(before)), closes = right && (c !== "_" || !left || isPunctuation(after));
    if (c === "~" && count !== 2) return this.push(c.repeat(count), count);
    return this.push({ c, count, left: count, opens, closes, begun: [], ended: [] }, count);
  }

  open(length) {
    this.brackets.push({ at: this.out.length, image: length === 2 });
    return this.push(this.text.slice(this.at, this.at + length), length);
  }

  close() {
    const bracket = this.brackets.pop();
    if (!bracket) return false;
    const found = /^\]\([ \t]*(?:<([^<>\n]{0,2000})>|([^\s()<>]{0,2000}(?:\([^\s()<>]{0,500}\)[^\s()<>]{0,500}){0,4}))(?:[ \t]+(?:"[^"\n]{0,500}"|'[^'\n]{0,500}'))?[ \t]*\)/.exec(this.text.slice(this.at, this.at + 5000));
    if (!found) return false;
    const url = found[1] ?? found[2], inner = emphasised(this.out.splice(bracket.at).slice(1));
    const words = inner.length ? inner : [url];
    this.brackets = this.brackets.filter((other) => other.image);  // no link in a link
    if (!safe(url)) this.out.push(...(bracket.image ? ["image: "] : []), ...words, url && inner.length ? ` (${url})` : "");
    else this.out.push(link(url, bracket.image ? ["image: ", ...words.map(plainly)] : words.map((one) => one[0] === "a" ? plainly(one) : one)));
    this.at += found[0].length;
    return true;
  }

  angle() {
    const rest = this.text.slice(this.at, this.at + 2048), url = /^<((?:https?:\/\/|mailto:)[^\s<>]+)>/i.exec(rest), line = /^<br\s{0,9}\/?>/i.exec(rest);
    if (line) return this.push(["br", {}], line[0].length);
    return url && safe(url[1]) && this.push(link(url[1], [url[1]]), url[0].length);
  }

  url() {
    const [all] = /^https?:\/\/[^\s<>"`]*/.exec(this.text.slice(this.at, this.at + 2048));
    let url = all.replace(/[.,;:!?'"*_~\]]+$/, "");
    while (url.endsWith(")") && url.split(")").length > url.split("(").length) url = url.slice(0, -1);
    return !this.brackets.some((one) => !one.image) && /^https?:\/\/[^/?#]/.test(url) && safe(url) && this.push(link(url, [url]), url.length);
  }

  // $x$ and $$x$$; "$5 and $10" are sums of money.
  dollar() {
    const rest = this.text.slice(this.at, this.at + kMaths);
    const found = /^\$\$([^$]+)\$\$/.exec(rest) ?? /^\$(?![\s$])((?:\\.|[^$\\\n])*[^\s$\\])\$(?!\d)/.exec(rest);
    return found && this.push(maths(found[1], found[0].startsWith("$$")), found[0].length);
  }

  entity() {
    const found = /^&(?:#(\d{1,7})|#[xX]([\da-fA-F]{1,6})|([a-z]{2,6}));/.exec(this.text.slice(this.at, this.at + 12));
    if (!found) return false;
    const code = found[1] ? Number(found[1]) : found[2] ? Number.parseInt(found[2], 16) : null;
    const text = code == null ? kEntities[found[3]] : code > 0 && code < 0x110000 ? String.fromCodePoint(code) : "\ufffd";
    return text != null && this.push(text, found[0].length);
  }
}

// Its text alone.
const textOf = (node) => typeof node === "string" ? node : node[0] === "br" ? " " : node.slice(2).map(textOf).join("");
const plainly = (node) => textOf(node);

// Pairs of runs of * _ ~, as CommonMark says it, in one pass; then the tree, in another.
function emphasised(items) {
  const open = { "*": [], "_": [], "~": [] };
  items.forEach((run, at) => {
    if (typeof run === "string" || Array.isArray(run)) return;
    run.at = at;
    while (run.closes && run.left && open[run.c].length) {
      const other = open[run.c].at(-1);
      if ((run.opens || other.closes) && (run.count + other.count) % 3 === 0 && (run.count % 3 || other.count % 3)) break;
      for (const all of Object.values(open)) while (all.length && all.at(-1).at > other.at) all.pop();
      const width = Math.min(2, run.left, other.left), pair = { c: run.c, width };
      other.begun.unshift(pair);
      run.ended.push(pair);
      run.left -= width;
      if (!(other.left -= width)) open[run.c].pop();
    }
    if (run.opens && run.left) open[run.c].push(run);
  });
  const stack = [[]], put = (node) => { if (node !== "") stack.at(-1).push(node); };
  for (const item of items) {
    if (typeof item === "string" || Array.isArray(item)) { put(item); continue; }
    for (const pair of item.ended) {
      if (pair.flat) put(pair.c.repeat(pair.width));
      else { const inner = stack.pop(); put([pair.c === "~" ? "del" : pair.width === 2 ? "strong" : "em", {}, ...inner]); }
    }
    put(item.c.repeat(item.left));
    for (const pair of item.begun) {
      pair.flat = stack.length > kNested;
      if (pair.flat) put(pair.c.repeat(pair.width)); else stack.push([]);
    }
  }
  return stack[0];
}

export const inline = (text) => new Inline(text).parse();

// ---- A text that grows ----

export const markdown = (text) => new GrowingMarkdown().append(text);

// The tree of a text that arrives in pieces. Blocks that later lines cannot change are made once.
export class GrowingMarkdown {
  constructor() { Object.assign(this, { settled: [], rest: "", lines: 0 }); }

  // All of the tree, the settled blocks the same objects as before.
  append(piece) {
    this.rest += piece;
    const held = this.rest.endsWith("\r") ? "\r" : "";  // half of a line's end
    const lines = this.rest.slice(0, this.rest.length - held.length).replace(/\r\n?/g, "\n").split("\n");
    if (lines.length - 1 > this.lines) {
      const last = lines.pop(), blocks = blocksOf(lines, 0), open = blocks.at(-1);
      for (const block of blocks.slice(0, -1)) this.settled.push(shown(block, 0));
      const kept = open ? lines.slice(open.from) : [];
      this.rest = [...kept, last].join("\n") + held;
      this.lines = kept.length;
      return [...this.settled, ...tree([...kept, last], 0)];
    }
    return [...this.settled, ...tree(lines, 0)];
  }
}
