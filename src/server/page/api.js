// What the page asks of the server. A stream that is cut off goes on where it was: from the journal's answer, after
// the number of the last event that came.
import { sleep } from "./dom.js";

export class ApiError extends Error {
  constructor(status, message, code) { super(message); this.status = status; this.code = code; }
}

export const server = { engine: null, key: sessionStorage.getItem("key") ?? "", onKeyWanted: () => {} };

export function setKey(key) {
  server.key = key;
  sessionStorage.setItem("key", key);
}

// `body`: a value, or JSON that is written already.
async function send(method, path, body, { signal, headers = {} } = {}) {
  if (server.key) headers = { ...headers, Authorization: `Bearer ${server.key}` };
  if (body) headers = { ...headers, "Content-Type": "application/json" };
  const response = await fetch(path, { method, headers, signal, body: typeof body === "string" ? body : body && JSON.stringify(body) });
  if (response.ok) return response;
  const text = await response.text();
  let error = {};
  try { error = JSON.parse(text).error ?? {}; } catch { /* not one of the server's own */ }
  if (response.status === 401) server.onKeyWanted();
  throw new ApiError(response.status, error.message ?? `the server answered ${response.status}`, error.code);
}

export async function call(method, path, body, options) {
  return (await send(method, path, body, options)).json();
}

const kLease = 90, kRenewal = 20;  // seconds; a page that is not seen has a timer once a minute
let renewal = null;

// Changes the engine of a server with --lab while this page is open.
export async function changeEngine(settings, options) {
  server.engine = await call("POST", "/v1/engine", { ...settings, for_seconds: kLease }, options);
  renewal ??= setInterval(() => call("POST", "/v1/engine", { for_seconds: kLease }).catch(() => {}), kRenewal * 1000);
}

const kFrame = 16;  // milliseconds

// What a stream's events hold, batch after batch. Waking up for an event costs more than the event, so the stream is left
// alone for a frame and then read until it has nothing more at hand.
async function* batchesOf(response) {
  const reader = response.body.getReader(), decoder = new TextDecoder(), nothing = Promise.resolve();
  let text = "";
  try {
    for (let next = reader.read();;) {
      const { value, done } = await next;
      if (!done) {
        text += decoder.decode(value, { stream: true });
        next = reader.read();
        if (await Promise.race([next, nothing]).catch(() => {})) continue;  // what is at hand comes first
      }
      const blocks = text.split("\n\n");
      text = blocks.pop();
      yield blocks.filter((block) => block.startsWith("data: ")).map((block) => block.slice(6));
      if (done) return;
      await sleep(kFrame);
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

const kPatience = 120_000;  // milliseconds for a server to come back

// Streams an answer: onEvent(event) for each, onPause(true or false) when the connection is lost or is there again.
// Returns when the answer is whole.
export async function stream(path, body, { signal, onEvent, onPause = () => {} }) {
  const headers = server.engine?.journal ? { "Idempotency-Key": crypto.getRandomValues(new Uint32Array(4)).join("-") } : {};
  const post = () => send("POST", path, { ...body, stream: true }, { signal, headers });
  let response = await post(), id = null, last = -1;
  for (;;) {
    let cut = "the connection to the server was lost";
    try {
      reading: for await (const batch of batchesOf(response)) {
        for (const data of batch) {
          if (data === "[DONE]") return;
          const event = JSON.parse(data);
          if (event.error) {
            if (event.error.code !== "engine_failed") throw new ApiError(500, event.error.message, event.error.code);
            cut = event.error.message;
            break reading;
          }
          ++last;
          id ??= event.id;
          onEvent(event);
        }
      }
    } catch (error) {
      if (signal?.aborted || error instanceof ApiError) throw error;
    }
    if (!server.engine?.journal)
      throw new ApiError(0, `${cut}, and without --journal the rest of the answer is lost`);
    onPause(true);
    response = await comeBack(id ? () => send("GET", `${path}/${id}?stream=true&starting_after=${last}`, null, { signal }) : post, signal);
    onPause(false);
  }
}

async function comeBack(ask, signal) {
  const end = Date.now() + kPatience;
  for (let pause = 100; ; pause = Math.min(pause * 1.5, 2000)) {
    await sleep(pause, signal);
    try {
      return await ask();
    } catch (error) {
      const isAway = !(error instanceof ApiError) || error.status === 503 || error.status === 429;
      if (signal?.aborted || !isAway || Date.now() > end) throw error;
    }
  }
}
