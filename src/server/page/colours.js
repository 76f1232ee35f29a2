// Code in colours: comments, texts, numbers, words of the language. Good enough to read by; no parser.
const words = (text) => new Set(text.split(" "));
const kWords = {
  // C, C++, C#, Go, Java, JavaScript, Kotlin, Rust, Swift and TypeScript.
  code: words("Self abstract as assert async await auto bool boolean break byte case catch chan char class co_await co_return co_yield concept const consteval constexpr continue crate data debugger declare def default defer delete do double dyn else enum explicit export extends extern f32 f64 fallthrough false final finally float fn for friend from fun func function get go goto guard i32 i64 if impl implements import in inline instanceof int interface internal is keyof let long loop match mod move mut mutable namespace native new nil noexcept null nullptr number object of open operator out override package private protected pub public range readonly record ref register requires return sealed self set short signed sizeof static static_cast string struct super switch synchronized template this throw throws trait true try type typedef typename typeof u32 u64 u8 undefined union unsafe unsigned use usize using val var virtual void volatile when where while with yield"),
  python: words("False None True and as assert async await break case class continue def del elif else except finally for from global if import in is lambda match nonlocal not or pass raise return self try while with yield"),
  sh: words("break case cd continue do done echo elif else esac exit export fi for function if in local read return set shift source sudo then trap unset until while"),
  sql: words("all alter and as asc begin between by case check commit create cross default delete desc distinct drop else end exists from full group having if in index inner insert into is join key left like limit not null offset on or order outer over partition primary references right select set table then union unique update using values view when where with"),
  ruby: words("alias and begin break class def do else elsif end ensure false for if in local module next nil not or redo repeat require rescue retry return self super then true undef unless until when while yield"),
  data: words("true false null yes no on off"),
};
const kLike = {};
for (const [like, names] of Object.entries({ code: "c cpp c++ cc h hpp cuda cu objc glsl javascript js jsx ts typescript tsx mjs java cs csharp c# kotlin kt scala swift dart php go golang zig", rust: "rs rust", python: "py python python3 r julia",
  sh: "bash sh shell zsh console dockerfile makefile", sql: "sql postgresql mysql sqlite", ruby: "rb ruby lua", data: "json jsonc yaml yml toml ini" })) for (const name of names.split(" ")) kLike[name] = like;

const kText = `"(?:\\\\.|[^"\\\\\\n])*"?|'(?:\\\\.|[^'\\\\\\n])*'?`, kNumber = "\\b(?:0[xX][\\da-fA-F_]+|0[bB][01_]+|\\d[\\d_]*(?:\\.\\d+)?(?:[eE][+-]?\\d+)?)\\w{0,4}\\b", kWord = "[A-Za-z_$][\\w$]*";
const kSlashes = "\\/\\/[^\\n]*|\\/\\*[^]*?(?:\\*\\/|$)", kHash = "#[^\\n]*", kTicks = "`(?:\\\\.|[^`\\\\])*`?", kThree = `"""[^]*?(?:"""|$)|'''[^]*?(?:'''|$)`;
const rule = (comment, text) => new RegExp(`(?<c>${comment})|(?<s>${text})|(?<n>${kNumber})|(?<w>${kWord})`, "g");
const kRules = {
  code: rule(`${kSlashes}|(?<![^\\n])[ \\t]*#[a-z]+`, `${kTicks}|${kText}`), rust: rule(kSlashes, `"(?:\\\\.|[^"\\\\])*"?|'(?:\\\\.|[^'\\\\\\n])'`), python: rule(kHash, `${kThree}|${kText}`),
  ruby: rule(`${kHash}|--[^\\n]*`, kText), sh: rule("(?<![^\\s])#[^\\n]*", kText), sql: rule(`--[^\\n]*|${kSlashes}`, kText), data: rule(`(?<![^\\s])#[^\\n]*|${kSlashes}`, kText),
};
const kMarkup = /(?<c><!--[^]*?(?:-->|$))|(?<w><\/?[A-Za-z][\w:-]*|\/?>)|(?<s>"[^"\n]*"|'[^'\n]*')/g;
const kMost = 40_000;  // letters; a longer text has no colours

// Parts of a text: texts, and spans whose class says what they are.
function parts(text, pattern, classOf) {
  const all = [];
  let at = 0;
  for (const found of text.matchAll(pattern)) {
    const kind = classOf(found);
    if (!kind) continue;
    if (found.index > at) all.push(text.slice(at, found.index));
    all.push(["span", { class: kind }, found[0]]);
    at = found.index + found[0].length;
  }
  if (at < text.length) all.push(text.slice(at));
  return all;
}

const diff = (text) => text.split("\n").flatMap((line, i) => {
  const kind = { "+": "hs", "-": "hd", "@": "hc" }[line[0]];
  return [i ? "\n" : "", kind ? ["span", { class: kind }, line] : line];
});

export function colours(language, text) {
  if (text.length > kMost) return [text];
  if (language === "diff" || language === "patch") return diff(text);
  if (["html", "xml", "svg", "vue", "markup"].includes(language)) return parts(text, kMarkup, ({ groups: { c, w } }) => c ? "hc" : w ? "hk" : "hs");
  if (language === "css" || language === "scss") return parts(text, rule("\\/\\*[^]*?(?:\\*\\/|$)", kText), ({ groups: { c, s, n } }) => c ? "hc" : s ? "hs" : n ? "hn" : null);
  if (!Object.hasOwn(kLike, language)) return [text];
  const like = kLike[language], known = kWords[like] ?? kWords.code;
  return parts(text, kRules[like], ({ 0: all, index, groups: { c, s, n, w } }) => {
    if (c) return "hc";
    if (s) return like === "data" && /^\s*:/.test(text.slice(index + all.length, index + all.length + 8)) ? "hk" : "hs";
    if (n) return "hn";
    if (known.has(like === "sql" ? w.toLowerCase() : w)) return "hk";
    return text[index + all.length] === "(" ? "hf" : null;
  });
}
