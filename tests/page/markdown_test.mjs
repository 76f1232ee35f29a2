// The page's Markdown without a browser: what it makes of what a model writes, that pieces make no difference, and that nothing in it
// runs, loads or hangs. Usage: node markdown_test.mjs
import assert from "node:assert/strict";
import test from "node:test";
import { FakeElement, made } from "./fake_document.mjs";
import { generator, kLong } from "./hostile.mjs";

const page = new URL("../../src/server/page/", import.meta.url);
const { GrowingMarkdown, inline, markdown } = await import(new URL("markdown.js", page));
const { patch } = await import(new URL("tree.js", page));
const { colours } = await import(new URL("colours.js", page));
const { maths } = await import(new URL("maths.js", page));
const kInputs = Number(process.env.INVAR_HOSTILE_INPUTS ?? 10_000);

const flat = (nodes) => nodes.map((node) => typeof node === "string" ? node : `<${node[0]}>${flat(node.slice(2))}</${node[0]}>`).join("");
const shown = (text) => flat(markdown(text));
const words = (nodes) => nodes.map((node) => typeof node === "string" ? node : words(node.slice(2))).join("");

test("blocks and words are as they are meant", () => {
  for (const [text, wanted] of [
    ["# A *b*", "<h2>A <em>b</em></h2>"], ["####### x", "<p>####### x</p>"], ["a\nb\n\nc", "<p>a<br></br>b</p><p>c</p>"],
    ["- a\n  - b\n- c", "<ul><li>a<ul><li>b</li></ul></li><li>c</li></ul>"], ["3. a\n4. b", "<ol><li>a</li><li>b</li></ol>"], ["- a\n\n- b", "<ul><li><p>a</p></li><li><p>b</p></li></ul>"],
    ["1. a\n   - b\n2. c", "<ol><li>a<ul><li>b</li></ul></li><li>c</li></ol>"], ["- [x] a", "<ul><li><span>☑</span> a</li></ul>"],
    ["> a\n> - b\n\nc", "<blockquote><p>a</p><ul><li>b</li></ul></blockquote><p>c</p>"], ["---", "<hr></hr>"],
    ["| a | b |\n|---|---|\n| 1 | 2 \\| 3 |\nx", "<div><table><thead><tr><th>a</th><th>b</th></tr></thead><tbody><tr><td>1</td><td>2 | 3</td></tr><tr><td>x</td><td></td></tr></tbody></table></div>"],
    ["```\n<b>\n```", "<div><div><span>text</span><button>Copy</button></div><pre><code><b></code></pre></div>"],
    ["**a _b_**", "<p><strong>a <em>b</em></strong></p>"], ["***a***", "<p><em><strong>a</strong></em></p>"], ["snake_case_name", "<p>snake_case_name</p>"], ["2*3*4", "<p>2<em>3</em>4</p>"], ["a * b * c", "<p>a * b * c</p>"],
    ["~~a~~ ~b~", "<p><del>a</del> ~b~</p>"], ["``a ` b``", "<p><code>a ` b</code></p>"], ["`a", "<p>`a</p>"], ["\\*a\\*", "<p>*a*</p>"], ["a &amp; &#65; &nope;", "<p>a & A &nope;</p>"],
    ["[a](http://b/c_(d))", "<p><a>a</a></p>"], ["see https://a.b/c_d).", "<p>see <a>https://a.b/c_d</a>).</p>"], ["![p](http://b/c)", "<p><a>image: p</a></p>"], ["<b>x</b>", "<p><b>x</b></p>"],
    ["$5 and $10", "<p>$5 and $10</p>"], ["$x^2$", "<p><math><msup><mi>x</mi><mn>2</mn></msup></math></p>"], ["a<br>b", "<p>a<br></br>b</p>"],
  ]) assert.equal(shown(text), wanted, text);
  assert.equal(typeof markdown("<b>x</b>")[0].slice(2)[0], "string", "HTML is text");
});

test("formulas are MathML, and what is not known stays text", () => {
  assert.equal(flat([maths("\\frac{a}{b}", true)]), "<math><mfrac><mi>a</mi><mi>b</mi></mfrac></math>");
  assert.equal(flat([maths("\\alpha_i \\le \\sqrt[3]{x}", false)]), "<math><mrow><msub><mi>α</mi><mi>i</mi></msub><mo>≤</mo><mroot><mi>x</mi><mn>3</mn></mroot></mrow></math>");
  assert.equal(flat([maths("\\begin{pmatrix} a & b \\\\ c & d \\end{pmatrix}", false)]), "<math><mrow><mo>(</mo><mtable><mtr><mtd><mi>a</mi></mtd><mtd><mi>b</mi></mtd></mtr><mtr><mtd><mi>c</mi></mtd><mtd><mi>d</mi></mtd></mtr></mtable><mo>)</mo></mrow></math>");
  assert.equal(flat([maths("\\text{if } \\unknown", false)]), "<math><mrow><mtext>if\u00a0</mtext><mtext>\\unknown</mtext></mrow></math>");
  assert.equal(flat([maths("{".repeat(50), false)]), `<code>${"{".repeat(50)}</code>`);
});

test("code has colours, and its text is never another", () => {
  assert.equal(flat(colours("python", "def f(): # x")), "<span>def</span> <span>f</span>(): <span># x</span>");
  const { text } = generator(5);
  for (const language of ["python", "cpp", "rust", "js", "sh", "sql", "html", "css", "json", "yaml", "diff", "ruby", "go", "__proto__", "constructor", ""])
    for (let i = 0; i < 200; ++i) { const code = text(); assert.equal(words(colours(language, code)), code, language); }
});

// The element that has grown from a text in pieces.
function grown(text, next) {
  const element = new FakeElement("div"), growing = new GrowingMarkdown();
  for (let at = 0; at < text.length;) { const to = Math.min(text.length, at + 1 + next(9)); patch(element, growing.append(text.slice(at, to))); at = to; }
  return element;
}

test("a text in pieces is the text as a whole", () => {
  const { next, text } = generator(11);
  for (let i = 0; i < 1500; ++i) {
    const all = i % 3 ? text() : Array.from({ length: 6 }, () => kLong[next(kLong.length)]).join(""), whole = new FakeElement("div");
    patch(whole, markdown(all));
    assert.equal(grown(all, next).html, whole.html, JSON.stringify(all));
  }
});

test("the foil: a tree that settles its last block too differs", () => {
  const settles = (text) => { const at = Math.ceil(text.length / 2); return flat([...markdown(text.slice(0, at)), ...markdown(text.slice(at))]); };
  assert.notEqual(settles("- a\n- b\n- c\n- d"), shown("- a\n- b\n- c\n- d"));
});

const kTags = new Set("div a b blockquote br button code del em h2 h3 h4 h5 h6 hr li ol p pre span strong table tbody td th thead tr ul math mfrac mi mn mo mover mroot mrow msqrt msub msubsup msup mtable mtd mtext mtr munder munderover".split(" "));
const kAttributes = new Set("class display href linethickness mathvariant rel start stretchy tabindex target title type".split(" "));

function faultOf({ tag, attributes }) {
  if (!kTags.has(tag)) return `element ${tag}`;
  for (const [name, value] of Object.entries(attributes)) {
    if (!kAttributes.has(name)) return `attribute ${name}`;
    if (name === "href" && !(tag === "a" && /^(?:https?:\/\/|mailto:)/.test(value))) return `link to ${value}`;
    if (name === "href" && attributes.rel !== "noopener noreferrer nofollow") return "link that tells whence";
  }
  return null;
}

test(`${kInputs} hostile texts make no element that runs or loads`, () => {
  const { next, text } = generator(54);
  let links = 0, formulas = 0;
  for (let i = 0; i < kInputs; ++i) {
    const all = text();
    made.length = 0;
    grown(all, next);
    for (const element of made) assert.equal(faultOf(element), null, JSON.stringify(all));
    links += made.filter((one) => one.tag === "a").length;
    formulas += made.filter((one) => one.tag === "math").length;
  }
  assert.ok(links > 1000 && formulas > 500, `the texts reach what they should: ${links} links, ${formulas} formulas`);
});

test("the foil: elements that are made of HTML are found", () => {
  const of = (html) => [...html.matchAll(/<([a-z]+)([^<>]*)>/g)].map(([, tag, rest]) => ({ tag, attributes: Object.fromEntries([...rest.matchAll(/([a-z]+)=([^\s>]*)/g)].map((m) => [m[1], m[2]])) }));
  const { text } = generator(54);
  const found = Array.from({ length: 200 }, text).flatMap(of).map(faultOf).filter(Boolean);
  assert.ok(found.length > 50);
  assert.throws(() => patch(new FakeElement("div"), [["script", {}, "alert(1)"]]), /no element script/);
  assert.throws(() => patch(new FakeElement("div"), [["a", { href: "javascript:alert(1)" }]]), /no attribute href/);
  assert.throws(() => patch(new FakeElement("div"), [["p", { onclick: "alert(1)" }]]), /no attribute onclick/);
});

test("no text takes long", () => {
  for (const piece of ["```x", "[", "![", "*_", "$a", "\\(", "> ", "- ", "|a|b\n", "<http:", "[a](", "**a*", "&#1;", "~~a", "`a``", "*a ", "a**b", "[a](b", "1. ", "    ", "\n- a\n\n", "$$\n", "(", "http://a"]) {
    const text = piece.repeat(20_000), began = performance.now();
    markdown(text);
    const took = performance.now() - began;
    assert.ok(took < 3000, `${JSON.stringify(piece)}: ${took.toFixed(0)} ms`);
  }
});

test("only what changes is made anew", () => {
  const element = new FakeElement("div"), growing = new GrowingMarkdown(), text = kLong.join("").repeat(4);
  made.length = 0;
  for (let at = 0; at < text.length; at += 4) patch(element, growing.append(text.slice(at, at + 4)));
  const count = (node) => node.childNodes ? 1 + node.childNodes.map(count).reduce((a, b) => a + b, 0) : 0;
  assert.ok(made.length < 4 * count(element), `${made.length} elements made for ${count(element)}`);
  assert.equal(inline("").length, 0);
});
