// TeX as MathML, which browsers set themselves: the commands that models write most. Commands that it does not know
// stand there as text.
const table = (text) => Object.fromEntries(text.trim().split(/\s+/).map((pair) => pair.split(":")));
const kLetters = table(`alpha:α beta:β gamma:γ delta:δ epsilon:ϵ varepsilon:ε zeta:ζ eta:η theta:θ vartheta:ϑ iota:ι kappa:κ lambda:λ mu:μ nu:ν xi:ξ pi:π rho:ρ sigma:σ
  tau:τ upsilon:υ phi:ϕ varphi:φ chi:χ psi:ψ omega:ω Gamma:Γ Delta:Δ Theta:Θ Lambda:Λ Xi:Ξ Pi:Π Sigma:Σ Phi:Φ Psi:Ψ Omega:Ω infty:∞ partial:∂ nabla:∇ ell:ℓ hbar:ℏ emptyset:∅
  aleph:ℵ Re:ℜ Im:ℑ degree:° ldots:… dots:… cdots:⋯ vdots:⋮ ddots:⋱ prime:′`);
const kSigns = table(`times:× cdot:⋅ div:÷ pm:± mp:∓ leq:≤ le:≤ geq:≥ ge:≥ neq:≠ ne:≠ approx:≈ equiv:≡ sim:∼ simeq:≃ cong:≅ propto:∝ to:→ rightarrow:→ leftarrow:← Rightarrow:⇒ Leftarrow:⇐
  leftrightarrow:↔ Leftrightarrow:⇔ iff:⟺ implies:⟹ mapsto:↦ in:∈ notin:∉ ni:∋ subset:⊂ subseteq:⊆ supset:⊃ supseteq:⊇ cup:∪ cap:∩ setminus:∖ forall:∀ exists:∃ neg:¬ land:∧ wedge:∧
  lor:∨ vee:∨ oplus:⊕ otimes:⊗ circ:∘ bullet:• star:⋆ ast:∗ ll:≪ gg:≫ perp:⊥ parallel:∥ mid:∣ angle:∠ triangle:△ therefore:∴ because:∵ langle:⟨ rangle:⟩ lfloor:⌊ rfloor:⌋ lceil:⌈
  rceil:⌉ vert:| Vert:‖ lvert:| rvert:| lVert:‖ rVert:‖ colon::`.replace("colon::", ""));
const kBig = table("sum:∑ prod:∏ coprod:∐ bigcup:⋃ bigcap:⋂ int:∫ iint:∬ oint:∮ lim:lim max:max min:min sup:sup inf:inf argmax:argmax argmin:argmin limsup:limsup liminf:liminf");
const kNames = new Set("sin cos tan cot sec csc arcsin arccos arctan sinh cosh tanh log ln lg exp det dim ker gcd deg Pr arg mod".split(" "));
const kAccents = table("hat:^ widehat:^ bar:¯ overline:¯ vec:→ tilde:~ widetilde:~ dot:˙ ddot:¨ overrightarrow:→");
const kSpaces = { ",": " ", ":": " ", ";": " ", " ": " ", "!": "", quad: " ", qquad: "  " };
const kBlackboard = { R: "ℝ", N: "ℕ", Z: "ℤ", Q: "ℚ", C: "ℂ", E: "𝔼", P: "ℙ", F: "𝔽", 1: "𝟙" };
const kDepth = 20;

const row = (nodes) => nodes.length === 1 ? nodes[0] : ["mrow", {}, ...nodes];
const operator = (text, more = {}) => ["mo", more, text];

class Reader {
  constructor(text) {
    this.tokens = text.match(/\\(?:[A-Za-z]+|[^])|\d+(?:[.,]\d+)*|[^\s\\]/gu) ?? [];
    Object.assign(this, { at: 0, depth: 0 });
  }

  // Up to one of `ends`, which is taken.
  group(...ends) {
    const nodes = [];
    if (++this.depth > kDepth) throw new Error("too deep");
    while (this.at < this.tokens.length) {
      const token = this.tokens[this.at];
      if (ends.includes(token)) { ++this.at; break; }
      const node = this.scripted();
      if (node) nodes.push(node);
    }
    --this.depth;
    return nodes;
  }

  // An argument: a group or one token.
  argument() {
    if (this.tokens[this.at] === "{") { ++this.at; return row(this.group("}")); }
    return this.atom() ?? ["mrow", {}];
  }

  // The letters of {text}.
  words() {
    if (this.tokens[this.at] !== "{") return this.tokens[this.at++] ?? "";
    const from = ++this.at;
    while (this.at < this.tokens.length && this.tokens[this.at] !== "}") ++this.at;
    return this.tokens.slice(from, this.at++).join("");
  }

  scripted() {
    const base = this.atom();
    let below = null, above = null;
    while (this.tokens[this.at] === "_" || this.tokens[this.at] === "^" || this.tokens[this.at] === "'") {
      const mark = this.tokens[this.at++];
      if (mark === "_") below = this.argument();
      else above = mark === "'" ? row([...(above ? [above] : []), operator("′")]) : this.argument();
    }
    if (!below && !above) return base;
    const over = base?.big && base.big !== "∫", of = base ?? ["mrow", {}];
    if (below && above) return [over ? "munderover" : "msubsup", {}, of, below, above];
    return below ? [over ? "munder" : "msub", {}, of, below] : [over ? "mover" : "msup", {}, of, above];
  }

  atom() {
    const token = this.tokens[this.at++];
    if (token === undefined || token === "}" || token === "&") return null;
    if (token === "{") return row(this.group("}"));
    if (token[0] === "\\") return this.command(token.slice(1));
    if (/\d/.test(token)) return ["mn", {}, token];
    if (/\p{L}/u.test(token)) return ["mi", {}, token];
    if (token === "_" || token === "^") { --this.at; return ["mrow", {}]; }
    return operator(token === "-" ? "−" : token === "*" ? "∗" : token, "()[]|/".includes(token) ? { stretchy: "false" } : {});
  }

  command(name) {
    const has = (of) => Object.hasOwn(of, name);
    if (has(kLetters)) return ["mi", {}, kLetters[name]];
    if (has(kSigns)) return operator(kSigns[name]);
    if (has(kBig)) return Object.assign(/^[a-z]/.test(kBig[name]) ? ["mi", {}, kBig[name]] : operator(kBig[name]), { big: kBig[name] });
    if (kNames.has(name)) return ["mi", {}, name];
    if (has(kSpaces)) return kSpaces[name] ? ["mtext", {}, kSpaces[name]] : null;
    if (has(kAccents)) return ["mover", {}, this.argument(), operator(kAccents[name])];
    if (/^[dt]?frac$/.test(name)) return ["mfrac", {}, this.argument(), this.argument()];
    if (name === "binom") return ["mrow", {}, operator("("), ["mfrac", { linethickness: "0" }, this.argument(), this.argument()], operator(")")];
    if (name === "sqrt") return this.root();
    if (name === "left" || name === "right" || /^[bB]igg?[lr]?$/.test(name)) return this.fence();
    if (/^(?:text|textbf|textit|mathrm|operatorname|mbox)$/.test(name)) return ["mtext", {}, this.spoken()];
    if (name === "mathbb") return ["mi", { mathvariant: "normal" }, [...this.words()].map((c) => kBlackboard[c] ?? c).join("")];
    if (/^(?:math(?:bf|cal|it|sf|frak|scr)|boldsymbol|bm|displaystyle|limits|nolimits|boxed)$/.test(name)) return /style|limits/.test(name) ? null : this.argument();
    if (name === "begin") return this.environment(this.words());
    if (name === "end") { this.words(); return null; }
    if (name === "\\" || name === "hline") return null;
    return /^[A-Za-z]/.test(name) ? ["mtext", {}, `\\${name}`] : operator(name);
  }

  root() {
    if (this.tokens[this.at] !== "[") return ["msqrt", {}, this.argument()];
    ++this.at;
    const degree = row(this.group("]"));
    return ["mroot", {}, this.argument(), degree];
  }

  fence() {
    const token = this.tokens[this.at++] ?? ".";
    if (token === ".") return null;
    const name = token.slice(1);
    return operator(token[0] !== "\\" ? token : Object.hasOwn(kSigns, name) ? kSigns[name] : name);
  }

  spoken() { return this.words().replace(/\\ |\ue000/g, "\u00a0").replace(/\\([#$%&_{}])/g, "$1"); }

  // Rows are parted by \\, cells by &.
  environment(name) {
    const end = this.tokens.indexOf("\\end", this.at), rows = [[[]]];
    if (/^array/.test(name) && this.tokens[this.at] === "{") this.words();
    while (this.at < this.tokens.length && !(this.tokens[this.at] === "\\end")) {
      const token = this.tokens[this.at];
      if (token === "\\\\") { rows.push([[]]); ++this.at; }
      else if (token === "&") { rows.at(-1).push([]); ++this.at; }
      else { const node = this.scripted(); if (node) rows.at(-1).at(-1).push(node); }
    }
    if (end >= 0) { ++this.at; this.words(); }
    const inner = ["mtable", { class: /^(?:align|cases|gather|split|equation)/.test(name) ? "aligned" : "matrix" },
      ...rows.filter((cells) => cells.some((cell) => cell.length)).map((cells) => ["mtr", {}, ...cells.map((cell) => ["mtd", {}, ...cell])])];
    const [left, right] = { pmatrix: "()", bmatrix: "[]", Bmatrix: "{}", vmatrix: "||", cases: "{" }[name] ?? "";
    return ["mrow", {}, ...(left ? [operator(left)] : []), inner, ...(right ? [operator(right)] : [])];
  }
}

export function maths(text, display) {
  try {
    // Words in a formula keep their spaces, which are none of the tokens.
    const kept = text.replace(/\\(text|textbf|textit|mbox)\s*\{([^{}]*)\}/g, (all, name, words) => `\\${name}{${words.replace(/ /g, "\ue000")}}`);
    return ["math", display ? { display: "block" } : {}, row(new Reader(kept).group())];
  } catch {
    return ["code", { class: "formula" }, text];
  }
}
