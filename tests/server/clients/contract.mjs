// Requests generated from small schemas against a server: node contract.mjs URL OPENAPI GENERATED [N]. What they allow is
// allowed by the reference too, and answered with 200 and a body of its schema; what breaks them by one field's type, with
// 400 and the error's schema. An operation with x-refused is refused whatever it is asked, one with x-rounds has so many
// requests.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import Ajv from "ajv/dist/2020.js";
import { parse } from "yaml";

const [url, file, limits, rounds = "40"] = process.argv.slice(2);
const api = parse(readFileSync(file, "utf8"));
const small = parse(readFileSync(limits, "utf8"));  // what is generated
const ajv = new Ajv({ strict: false });
ajv.addSchema({ ...api, $id: "api" });

let state = 1;  // of a linear generator: the same requests each time
const draw = (below) => (state = (state * 1103515245 + 12345) % 2147483648) % below;
const pick = (list) => list[draw(list.length)];

const generated = (schema) => schema.$ref ? generated(schema.$ref.slice(2).split("/").reduce((at, key) => at[key], small)) : schema;

function make(schema) {
  if (schema.$ref) return make(generated(schema));
  if ("const" in schema) return schema.const;
  if (schema.enum) return pick(schema.enum);
  if (schema.oneOf) return make(pick(schema.oneOf));
  const least = schema.minimum ?? 0, most = schema.maximum ?? 10;
  const count = (low, high) => low + draw(high - low + 1);
  switch (schema.type) {
    case "integer": return least + draw(Math.min(most - least + 1, 2 ** 31));
    case "number": return least + (most - least) * draw(1000) / 1000;
    case "boolean": return draw(2) === 1;
    case "string": return Array.from({ length: count(schema.minLength ?? 0, schema.maxLength ?? 9) }, () => pick([..."abc é😀\"\\\n<{"])).join("");
    case "array": return Array.from({ length: count(schema.minItems ?? 0, schema.maxItems ?? 3) }, () => make(schema.items));
    case "object": return Object.fromEntries(Object.entries(schema.properties)
      .filter(([name]) => schema.required?.includes(name) || draw(3) === 0).map(([name, of]) => [name, make(of)]));
  }
  throw new Error(`no generator for ${JSON.stringify(schema)}`);
}

async function ask(method, path, body) {
  const reply = await fetch(url + path, { method, body: body && JSON.stringify(body), headers: { authorization: "Bearer secret" } });
  const text = await reply.text();
  return [reply.status, text && reply.headers.get("content-type").startsWith("application/json") ? JSON.parse(text) : text];
}

// Where the schema of a refusal stands: /v1/messages has another than the rest.
function refusal(operation) {
  const response = operation.responses["4XX"].$ref.slice(2).split("/").reduce((at, key) => at[key], api);
  return response.content["application/json"].schema.$ref.slice(1);
}

function conforms(value, pointer, body) {
  const validate = ajv.getSchema(`api#${pointer}`);
  assert.ok(validate(value), `${JSON.stringify(body)} was answered ${JSON.stringify(value)}: ${ajv.errorsText(validate.errors)}`);
}

let asked = 0;
for (const [path, methods] of Object.entries(api.paths))
  for (const [method, operation] of Object.entries(methods)) {
    if (operation["x-not-generated"]) continue;
    const schema = operation.requestBody?.content["application/json"].schema;
    if (operation["x-refused"]) {
      const [status, error] = await ask(method.toUpperCase(), path, method === "post" ? {} : undefined);
      assert.equal(status, 400, `${path}: ${JSON.stringify(error)}`);
      conforms(error, refusal(operation), {});
      ++asked;
      continue;
    }
    const answer = operation.responses["200"].content?.["application/json"]?.schema.$ref.slice(1);
    for (let round = 0; round < (schema ? operation["x-rounds"] ?? Number(rounds) : 1); ++round, ++asked) {
      const body = schema && make(schema);
      const [status, value] = await ask(method.toUpperCase(), path, body);
      assert.equal(status, 200, `${path} ${JSON.stringify(body)}: ${JSON.stringify(value)}`);
      if (schema) conforms(body, schema.$ref.slice(1), "generated");
      if (answer) conforms(value, answer, body);
      if (!schema) continue;
      const names = Object.keys(body).filter((name) => !generated(schema).properties[name]["x-any"]);  // may have any members
      if (!names.length) continue;
      const name = pick(names);
      const broken = { ...body, [name]: { wrong: [] } };
      const [refused, error] = await ask("POST", path, broken);
      assert.equal(refused, 400, `${path} ${JSON.stringify(broken)}: ${JSON.stringify(error)}`);
      conforms(error, refusal(operation), broken);
    }
  }
console.log(`${asked} requests conform to ${Object.keys(api.paths).length} paths`);
