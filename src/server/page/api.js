// The page's requests to the server. A stream that is cut off goes on where it was: from the journal's answer, after
// the number of the last event that came.
import { sleep } from "./dom.js";

export class ApiError extends Error {
  constructor(status, message, code, param) { super(message); Object.assign(this, { status, code, param }); }
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
  throw new ApiError(response.status, error.message ?? `the server answered ${response.status}`, error.code, error.param);
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

// The contents of a stream's events, batch after batch. Waking up for an event costs more than the event, so the stream
// is left alone for `pause()` milliseconds and then read until it has nothing more at hand.
async function* batchesOf(response, pause) {
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
      await sleep(pause());
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

const kPause = 50;  // milliseconds
const kPatience = 120_000;  // milliseconds for a server to come back

export const newKey = () => crypto.getRandomValues(new Uint32Array(4)).join("-");

// Streams an answer: onEvent(event) for each, onBatch() behind those that came together, onPause(reason, or nothing) when the server is away, busy or there again. Returns when
// the answer is whole. `key`: by which a journal knows the request again. `known`: the id of an answer that began in an earlier life
// of this page, whose events come from the first one on.
export async function stream(path, body, { signal, key, known = null, onEvent, onBatch = () => {}, pause = () => kPause, onPause = () => {} }) {
  const headers = key && server.engine?.journal ? { "Idempotency-Key": key } : {};
  let id = known, last = -1;
  const post = () => send("POST", path, { ...body, stream: true }, { signal, headers });
  const ask = () => id ? send("GET", `${path}/${id}?stream=true&starting_after=${last}`, null, { signal }) : post();
  let response = await insist(ask, signal, onPause);
  for (;;) {
    let cut = "the connection to the server was lost";
    try {
      reading: for await (const batch of batchesOf(response, pause)) {
        for (const data of batch) {
          if (data === "[DONE]") return;
          const event = JSON.parse(data);
          if (event.error) {
            if (event.error.code !== "engine_failed") throw new ApiError(500, event.error.message, event.error.code, event.error.param);
            cut = event.error.message;
            break reading;
          }
          ++last;
          id ??= event.id;
          onEvent(event);
        }
        onBatch();
      }
    } catch (error) {
      if (signal?.aborted || error instanceof ApiError) throw error;
    }
    if (!server.engine?.journal)
      throw new ApiError(0, `${cut}, and without --journal the rest of the answer is lost`);
    onPause("away");
    response = await insist(ask, signal, onPause);
  }
}

const isAway = (error) => !(error instanceof ApiError) || error.status === 502 || error.status === 503;

// Asks until the server answers.
async function insist(ask, signal, onPause) {
  const end = Date.now() + kPatience;
  for (let pause = 100; ; pause = Math.min(pause * 1.5, 2000)) {
    try {
      const response = await ask();
      onPause("");
      return response;
    } catch (error) {
      const isBusy = error.status === 429;
      if (signal?.aborted || !(isAway(error) || isBusy)) throw error;
      if (Date.now() > end) throw isBusy ? error : new ApiError(0, `the server did not answer for ${kPatience / 1000} s`);
      onPause(isBusy ? "busy" : "away");
    }
    await sleep(pause, signal);
  }
}
