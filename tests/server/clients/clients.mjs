// Well-known clients, unmodified: node clients.mjs URL-OF-A-SERVER (key "secret", model "m").
import assert from "node:assert/strict";
import Anthropic from "@anthropic-ai/sdk";
import OpenAI6 from "openai6";
import OpenAI7 from "openai7";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, jsonSchema, streamText, tool } from "ai";

const url = process.argv[2] + "/v1";
const messages = [{ role: "user", content: "hi" }];
const parameters = { type: "object", properties: { days: { enum: [1, 2, 3] } }, required: ["days"], additionalProperties: false };
const weather = { type: "function", function: { name: "weather", parameters } };
let passed = 0;

async function check(name, test) {
  await test();
  ++passed;
  console.log("ok", name);
}

async function openai(OpenAI, version) {
  const client = new OpenAI({ baseURL: url, apiKey: "secret", maxRetries: 0 });
  const chat = (more) => client.chat.completions.create({ model: "m", messages, seed: 3, max_tokens: 20, ...more });
  const name = (what) => `openai ${version}: ${what}`;

  await check(name("models"), async () => {
    const listed = await client.models.list();
    assert.deepEqual(listed.data.map((m) => m.id), ["m"]);
    assert.deepEqual(await client.models.retrieve("m"), listed.data[0]);
    await assert.rejects(client.models.retrieve("org/other"), (e) => e.status === 404 && e.code === "model_not_found");
  });
  await check(name("a stream says what the whole says"), async () => {
    const whole = await chat({});
    let text = "", usage;
    for await (const chunk of await chat({ stream: true, stream_options: { include_usage: true } })) {
      text += chunk.choices[0]?.delta.content ?? "";
      usage = chunk.usage ?? usage;
    }
    assert.equal(text, whole.choices[0].message.content);
    assert.deepEqual(usage, whole.usage);
  });
  await check(name("completions and logprobs"), async () => {
    const done = await client.completions.create({ model: "m", prompt: "x", max_tokens: 3, logprobs: 2, seed: 1 });
    assert.equal(done.choices[0].logprobs.tokens.length, done.usage.completion_tokens);
  });
  await check(name("tools, whole and streamed"), async () => {
    const asked = { tools: [weather], tool_choice: "required", max_tokens: 100 };
    const call = (await chat(asked)).choices[0].message.tool_calls[0];
    assert.equal(call.function.name, "weather");
    assert.ok([1, 2, 3].includes(JSON.parse(call.function.arguments).days));
    const runner = client.chat.completions.stream({ model: "m", messages, seed: 3, ...asked });
    const message = (await runner.finalChatCompletion()).choices[0].message;
    assert.equal(message.tool_calls[0].function.arguments, call.function.arguments);
  });
  await check(name("schema"), async () => {
    const parsed = await client.chat.completions.parse({ model: "m", messages, seed: 3, max_tokens: 100,
      response_format: { type: "json_schema", json_schema: { name: "d", strict: true, schema: parameters } } });
    assert.ok([1, 2, 3].includes(parsed.choices[0].message.parsed.days));
  });
  await check(name("errors"), async () => {
    await assert.rejects(chat({ model: "other" }), (e) => e.status === 404 && e.code === "model_not_found");
    await assert.rejects(chat({ temperature: -1 }), (e) => e instanceof OpenAI.BadRequestError);
    const stranger = new OpenAI({ baseURL: url, apiKey: "wrong", maxRetries: 0 });
    await assert.rejects(stranger.models.list(), (e) => e instanceof OpenAI.AuthenticationError);
  });
  await check(name("abort"), async () => {
    const stream = await chat({ stream: true, max_tokens: 400, ignore_eos: true });
    let chunks = 0;
    for await (const _ of stream) if (++chunks === 3) stream.controller.abort();
    assert.ok(chunks < 400);  // what had come already is still shown
  });
  await check(name("embeddings"), async () => {
    const { data } = await client.embeddings.create({ model: "m", input: ["a b c", "d"] });
    assert.equal(data.length, 2);
    const { data: floats } = await client.embeddings.create({ model: "m", input: "a b c", encoding_format: "float" });
    assert.deepEqual(data[0].embedding, floats[0].embedding.map(Math.fround));
  });
  await check(name("responses"), async () => {
    const made = await client.responses.create({ model: "m", input: "hi", max_output_tokens: 16 });
    assert.ok(made.output_text.length > 0);
    let text = "", last;
    for await (const event of await client.responses.create({ model: "m", input: "hi", max_output_tokens: 16, stream: true })) {
      if (event.type === "response.output_text.delta") text += event.delta;
      last = event;
    }
    assert.match(last.type, /^response\.(completed|incomplete)$/);
    assert.equal(last.response.output[0].content[0].text, text);
  });
  await check(name("a response that goes on from another"), async () => {
    const first = await client.responses.create({ model: "m", input: "hi", max_output_tokens: 8 });
    const second = await client.responses.create({ model: "m", input: "and?", max_output_tokens: 8, previous_response_id: first.id });
    assert.equal(second.previous_response_id, first.id);
    const all = [{ role: "user", content: "hi" }, ...first.output, { role: "user", content: "and?" }];
    const same = await client.responses.create({ model: "m", input: all, max_output_tokens: 8, seed: second.seed });
    assert.equal(same.output_text, second.output_text);
    await assert.rejects(client.responses.create({ model: "m", input: "x", previous_response_id: "resp_0" }),
      (e) => e.code === "previous_response_not_found");
  });
}

async function anthropic() {
  const client = new Anthropic({ baseURL: process.argv[2], apiKey: "secret", maxRetries: 0 });
  const asked = { model: "m", messages, max_tokens: 100, seed: 3 };
  const tools = [{ name: "weather", description: "What comes", input_schema: parameters }];
  await check("anthropic: a stream says what the whole says", async () => {
    const whole = await client.messages.create(asked);
    let text = "";
    const stream = client.messages.stream(asked).on("text", (delta) => (text += delta));
    const final = await stream.finalMessage();
    assert.equal(text, whole.content[0].text);
    assert.deepEqual(final.content, whole.content);
    assert.deepEqual([final.usage, final.stop_reason], [whole.usage, whole.stop_reason]);
  });
  await check("anthropic: tools, whole and streamed", async () => {
    const more = { ...asked, tools, tool_choice: { type: "any" } };
    const whole = await client.messages.create(more);
    const call = whole.content[0];
    assert.equal(whole.stop_reason, "tool_use");
    assert.ok([1, 2, 3].includes(call.input.days));
    const final = await client.messages.stream(more).finalMessage();
    assert.deepEqual(final.content[0].input, call.input);
    const goes_on = [...messages, { role: "assistant", content: whole.content },
      { role: "user", content: [{ type: "tool_result", tool_use_id: call.id, content: "rain" }] }];
    assert.equal((await client.messages.create({ ...asked, tools, messages: goes_on })).type, "message");
  });
  await check("anthropic: stop sequences, system, counting", async () => {
    const text = (await client.messages.create({ ...asked, system: "Be brief." })).content[0].text;
    const stop = text.slice(8, 10);
    const cut = await client.messages.create({ ...asked, system: "Be brief.", stop_sequences: [stop] });
    assert.deepEqual([cut.stop_reason, cut.stop_sequence], ["stop_sequence", stop]);
    assert.equal(cut.content[0].text, text.slice(0, text.indexOf(stop)));
    const { input_tokens } = await client.messages.countTokens({ model: "m", messages, system: "Be brief." });
    assert.equal(input_tokens, cut.usage.input_tokens);
  });
  await check("anthropic: errors", async () => {
    await assert.rejects(client.messages.create({ ...asked, model: "other" }), (e) => e instanceof Anthropic.NotFoundError);
    await assert.rejects(client.messages.create({ ...asked, temperature: -1 }),
      (e) => e instanceof Anthropic.BadRequestError && e.error.error.type === "invalid_request_error");
    const stranger = new Anthropic({ baseURL: process.argv[2], apiKey: "wrong", maxRetries: 0 });
    await assert.rejects(stranger.messages.create(asked), (e) => e instanceof Anthropic.AuthenticationError);
    const bearer = new Anthropic({ baseURL: process.argv[2], apiKey: null, authToken: "secret", maxRetries: 0 });
    assert.equal((await bearer.messages.create({ ...asked, max_tokens: 1 })).type, "message");
  });
}

async function aiSdk() {
  const model = createOpenAICompatible({ name: "invar", baseURL: url, apiKey: "secret" })("m");
  await check("ai: text, whole and streamed", async () => {
    const asked = { model, prompt: "hi", maxOutputTokens: 20, seed: 3, maxRetries: 0 };
    const whole = await generateText(asked);
    let text = "";
    for await (const piece of streamText(asked).textStream) text += piece;
    assert.equal(text, whole.text);
  });
  await check("ai: tools", async () => {
    const done = await generateText({ model, prompt: "hi", seed: 3, maxRetries: 0, toolChoice: "required",
      tools: { weather: tool({ inputSchema: jsonSchema(parameters) }) } });
    assert.equal(done.toolCalls[0].toolName, "weather");
    assert.ok([1, 2, 3].includes(done.toolCalls[0].input.days));
  });
}

await openai(OpenAI6, 6);
await openai(OpenAI7, 7);
await anthropic();
await aiSdk();
console.log(`${passed} checks passed`);
