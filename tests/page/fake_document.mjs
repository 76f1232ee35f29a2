// As much of a document as the page's trees need: what was made, with which attributes, and its text.
export const made = [];

class FakeNode {
  parent = null;
  replaceWith(other) {
    const all = this.parent.childNodes;
    all[all.indexOf(this)] = other;
    other.parent = this.parent;
    this.parent = null;
  }
  remove() {
    this.parent.childNodes.splice(this.parent.childNodes.indexOf(this), 1);
    this.parent = null;
  }
}

class FakeText extends FakeNode {
  constructor(data) { super(); this.data = data; }
  appendData(more) { this.data += more; }
  get textContent() { return this.data; }
  get html() { return JSON.stringify(this.data); }
}

export class FakeElement extends FakeNode {
  childNodes = [];
  attributes = {};
  constructor(tag) { super(); this.tag = tag; made.push(this); }
  setAttribute(name, value) { this.attributes[name] = String(value); }
  append(...nodes) { for (const node of nodes) { node.parent = this; this.childNodes.push(node); } }
  get lastChild() { return this.childNodes.at(-1); }
  get textContent() { return this.childNodes.map((node) => node.textContent).join(""); }
  get html() { return `<${this.tag} ${JSON.stringify(this.attributes)}>${this.childNodes.map((node) => node.html).join("")}</${this.tag}>`; }
}

globalThis.document = {
  createTextNode: (data) => new FakeText(data),
  createElement: (tag) => new FakeElement(tag),
  createElementNS: (_, tag) => new FakeElement(tag),
};
