// Trees of elements in the document. A model's words get there by `patch` alone, which makes no element and no
// attribute but these: nothing that runs, and nothing that loads.
const kTags = new Set("a b blockquote br button code del div em h2 h3 h4 h5 h6 hr li ol p pre span strong table tbody td th thead tr ul".split(" "));
const kMathsTags = new Set("math mfrac mi mn mo mover mroot mrow msqrt mstyle msub msubsup msup mtable mtd mtext mtr munder munderover".split(" "));
const kAttributes = new Set("class display href linethickness mathvariant rel start stretchy tabindex target title type".split(" "));
const kMaths = "http://www.w3.org/1998/Math/MathML";

function make(wanted) {
  if (typeof wanted === "string") return document.createTextNode(wanted);
  const [tag, attributes, ...children] = wanted;
  const isMaths = kMathsTags.has(tag);
  if (!isMaths && !kTags.has(tag)) throw new Error(`no element ${tag} in a text`);
  const element = isMaths ? document.createElementNS(kMaths, tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (!kAttributes.has(name) || (name === "href" && !/^(?:https?:|mailto:)/i.test(value))) throw new Error(`no attribute ${name} in a text`);
    element.setAttribute(name, value);
  }
  patch(element, children);
  return element;
}

function sameAttributes(a, b) {
  const names = Object.keys(a);
  return names.length === Object.keys(b).length && names.every((name) => a[name] === b[name]);
}

// Texts that stand beside each other are one.
function joined(children) {
  const all = [];
  for (const child of children) {
    if (child === "") continue;
    if (typeof child === "string" && typeof all.at(-1) === "string") all[all.length - 1] += child;
    else all.push(child);
  }
  return all;
}

// Makes the children of `parent` those of `wanted`: texts, and [tag, attributes, ...children]. Nodes that are there
// already stay, so that a growing text costs only its new part, and a selection stays selected.
export function patch(parent, wanted) {
  const had = parent.shown ?? [], now = joined(wanted);
  now.forEach((want, i) => {
    const old = had[i];
    if (old === want) return;
    if (old === undefined) return parent.append(make(want));
    const there = parent.childNodes[i];
    if (typeof want === "string" && typeof old === "string") {
      if (want.startsWith(old)) there.appendData(want.slice(old.length));
      else there.data = want;
    } else if (Array.isArray(want) && Array.isArray(old) && want[0] === old[0] && sameAttributes(want[1], old[1])) {
      patch(there, want.slice(2));
    } else {
      there.replaceWith(make(want));
    }
  });
  for (let i = had.length; i > now.length; --i) parent.lastChild.remove();
  parent.shown = now;
}
