// The reference of the API, from openapi.json.
import { $, el } from "./dom.js";

let api;
const kDepth = 4;  // of objects in objects

document.documentElement.dataset.theme = localStorage.getItem("theme") ?? "";

const resolve = (node) => node?.$ref ? node.$ref.slice(2).split("/").reduce((at, key) => at[key], api) : node;
const nameOf = (node) => node?.$ref?.split("/").at(-1);
const anchor = (method, path) => `${method}-${path.slice(1).replace(/[^\w]+/g, "-")}`;

function typeOf(schema) {
  if (schema.$ref) return nameOf(schema);
  if ("const" in schema) return JSON.stringify(schema.const);
  if (schema.enum) return schema.enum.map((value) => JSON.stringify(value)).join(" | ");
  const either = schema.anyOf ?? schema.oneOf;
  if (either) return either.map(typeOf).join(" | ");
  const types = [schema.type ?? "any"].flat().map((type) => type === "array" && schema.items ? `list of ${typeOf(schema.items)}` : type);
  return types.join(" | ");
}

function limitsOf(schema) {
  const parts = [];
  const { minimum: low, maximum: high, exclusiveMinimum: above } = schema;
  if (above != null) parts.push(`above ${above}`);
  if (low != null && high != null) parts.push(`${low} to ${high}`);
  else if (low != null) parts.push(`${low} or more`);
  if (high != null && low == null) parts.push(`at most ${high}`);
  if (schema.default !== undefined) parts.push(`default ${JSON.stringify(schema.default)}`);
  return parts.join(", ");
}

// The members of an object, those that it has from others included.
function membersOf(schema) {
  const own = Object.entries(schema.properties ?? {}).map(([name, value]) => [name, value, schema.required?.includes(name)]);
  return [...own, ...(schema.allOf ?? []).flatMap((part) => membersOf(resolve(part)))];
}

function table(schema, depth = 0, seen = []) {
  const rows = membersOf(schema).flatMap(([name, value, required]) => {
    const inner = resolve(value), items = inner.type === "array" ? resolve(inner.items ?? {}) : inner;
    const row = el("tr", {}, el("th", { scope: "row" }, el("code", {}, name), required ? el("span", { class: "needed" }, " required") : null),
      el("td", { class: "mono" }, typeOf(value)), el("td", {}, [value.description ?? inner.description, limitsOf(inner)].filter(Boolean).join(". ")));
    const goesOn = depth < kDepth && !seen.includes(items) && membersOf(items).length;
    return goesOn ? [row, el("tr", {}, el("td", { class: "inner", colspan: 3 }, table(items, depth + 1, [...seen, items])))] : [row];
  });
  return el("table", { class: "members" }, el("tbody", {}, ...rows));
}

function body(title, content) {
  return Object.entries(content ?? {}).map(([type, { schema }]) => {
    const found = resolve(schema);
    return el("details", { open: title === "Request" }, el("summary", {}, `${title} `, el("span", { class: "note" }, `${type}${nameOf(schema) ? `, ${nameOf(schema)}` : ""}`)),
      found.description ? el("p", { class: "note" }, found.description) : null, membersOf(found).length ? table(found, 0, [found]) : null);
  });
}

function operation(path, method, of) {
  const parameters = (of.parameters ?? []).map(resolve);
  const open = of.security && !of.security.length ? el("span", { class: "note" }, " needs no key") : null;
  return el("section", { id: anchor(method, path), class: "operation" },
    el("h2", {}, el("span", { class: `method ${method}` }, method.toUpperCase()), el("code", {}, path)), el("p", {}, of.summary, open),
    parameters.length ? table({ properties: Object.fromEntries(parameters.map((p) => [p.name, { ...p.schema, description: p.description ?? `in the ${p.in}` }])), required: parameters.filter((p) => p.required).map((p) => p.name) }) : null,
    ...body("Request", of.requestBody?.content),
    ...Object.entries(of.responses).flatMap(([status, response]) => body(`${status} ${resolve(response).description}`, resolve(response).content)));
}

async function begin() {
  api = await (await fetch("/openapi.json")).json();
  const all = Object.entries(api.paths).flatMap(([path, methods]) => Object.entries(methods).map(([method, of]) => [path, method, of]));
  $("contents").append(el("h2", {}, `API ${api.info.version}`), el("ul", {}, ...all.map(([path, method]) => el("li", {},
    el("a", { href: `#${anchor(method, path)}` }, el("span", { class: `method ${method}` }, method.toUpperCase()), path)))));
  $("reference").append(el("p", {}, api.info.description), ...all.map(([path, method, of]) => operation(path, method, of)));
  if (location.hash) document.querySelector(location.hash)?.scrollIntoView();
}

begin();
