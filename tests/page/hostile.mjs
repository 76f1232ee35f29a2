// Markdown that wants to run something or to load something: pieces of attacks and of what a model writes, put together at random.
const kUrls = ["javascript:alert(1)", "JaVaScRiPt:alert(1)", "java\tscript:alert(1)", "\u0001javascript:alert(1)", "data:text/html,<script>alert(1)</script>", "vbscript:x", "//evil.invalid/x",
  "http://evil.invalid/x.png", "https://evil.invalid/?q=1", "https://evil.invalid/\"onmouseover=\"alert(1)", "/v1/engine", "blob:http://evil.invalid/1", "file:///etc/passwd", "http:evil", "mailto:a@evil.invalid", "ftp://evil.invalid", "  javascript:alert(1)"];
const kPieces = ["<script>alert(1)</script>", "<script src=http://evil.invalid/x.js></script>", "<img src=http://evil.invalid/x.png onerror=alert(1)>", "<svg onload=alert(1)>", "<iframe src=http://evil.invalid>",
  "<link rel=stylesheet href=http://evil.invalid>", "<style>@import url(http://evil.invalid)</style>", "<base href=http://evil.invalid>", "<form action=http://evil.invalid><input autofocus onfocus=alert(1)>", "<a href=javascript:alert(1)>x</a>",
  "<details open ontoggle=alert(1)>", "<math><maction actiontype=statusline xlink:href=javascript:alert(1)>x</maction></math>", "<!--", "-->", "<![CDATA[", "]]>", "&lt;script&gt;", "&#60;img src=x&#62;", "&#x3c;", "&#0;", "&#1114112;", "\u0000", "\u202e",
  "**", "*", "_", "__", "~~", "`", "``", "```", "~~~", "```html\n", "```js\n", "```__proto__\n", "```constructor\n", "\n", "\n\n", "\r\n", "\r", "> ", "- ", "1. ", "1) ", "+ ", "# ", "###### ", "---\n", "| a | b |\n|---|---|\n", "|", "[", "]", "![", "](", ")", "[x](<", ">)", "\"", "'", "\\", "\\(", "\\)", "\\[", "\\]",
  "$", "$$", "$$\n", "\\frac", "\\text{", "{", "}", "\\href{javascript:alert(1)}{x}", "\\begin{matrix}", "\\end{matrix}", "\\__proto__", "\\constructor", "&", "\\\\", "^", "_", "[ ] ", "[x] ", "    ", "\t", "words ", "https://", "http://evil.invalid/a_b_c", "💥", "\ud800", "ä"];

export function generator(seed) {
  let state = seed >>> 0 || 1;
  const next = (below) => { state ^= state << 13; state ^= state >>> 17; state ^= state << 5; state >>>= 0; return state % below; };
  const pick = (list) => list[next(list.length)];
  const link = () => pick(["[x](U)", "![x](U)", "<U>", "[x](<U>)", "[x](U \"t\")", "[![i](U)](U)", "U", "[x]: U\n\n[x]"]).replaceAll("U", () => pick(kUrls));
  return { next, text: () => Array.from({ length: 1 + next(24) }, () => next(4) ? pick(kPieces) : link()).join("") };
}

// Markdown as a model writes it: not the same in two runs, and with every kind of block.
export const kLong = ["# A heading\n\n", "Some **bold** and *slanted* words with `code`, [a link](https://example.org/) and more of them.\n\n", "- one\n- two\n  - three\n  - four\n- five\n\n",
  "| a | b | c |\n|---|:-:|--:|\n| 1 | 2 | 3 |\n| 4 | 5 | 6 |\n\n", "```python\ndef f(x):\n    return [x + i for i in range(10)]  # a comment\n```\n\n", "> A quote\n> of two lines\n\n", "1. first\n2. second\n\n   with more\n3. third\n\n",
  "The sum $\\sum_{i=0}^n i$ is\n\n$$\\frac{n(n+1)}{2}$$\n\n"];
