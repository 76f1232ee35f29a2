// Conversations in this browser's database: a head for each, and its messages one by one, so that an answer that comes writes
// itself and nothing else. Where the browser keeps nothing, they last as long as the page.
const kName = "invar", kVersion = 1;
const channel = "BroadcastChannel" in globalThis ? new BroadcastChannel("invar-talks") : null;
export const store = { keeps: true, onFault: () => {} };

const opened = new Promise((resolve) => {
  try {
    const asked = indexedDB.open(kName, kVersion);
    asked.onupgradeneeded = () => {
      asked.result.createObjectStore("heads", { keyPath: "id" });
      asked.result.createObjectStore("nodes", { keyPath: ["talk", "id"] });
    };
    asked.onsuccess = () => resolve(asked.result);
    asked.onerror = asked.onblocked = () => resolve(null);
  } catch {
    resolve(null);
  }
}).then((db) => { store.keeps = !!db; return db; });

const memory = new Map();  // where there is no database: {head, nodes by id} by conversation

const allOf = (talk) => IDBKeyRange.bound([talk], [talk, []]);

// Carries out what `work` asks of the stores, whole or not at all; resolves to the last request's result.
async function transact(mode, work) {
  const db = await opened;
  if (!db) return undefined;
  return new Promise((resolve, reject) => {
    const run = db.transaction(["heads", "nodes"], mode), asked = work(run.objectStore("heads"), run.objectStore("nodes"));
    run.oncomplete = () => resolve(asked?.result);
    run.onerror = run.onabort = () => reject(run.error ?? new Error("the browser ended it"));
  });
}

async function write(talk, work, remember) {
  try {
    if (!(await opened)) return remember();
    await transact("readwrite", work);
    channel?.postMessage(talk);
  } catch (error) {
    store.onFault(`The browser does not keep the conversation: ${error.message}`);
  }
}

export const readHeads = async () => (await transact("readonly", (heads) => heads.getAll())) ?? [...memory.values()].map((one) => one.head);
export const readHead = (id) => transact("readonly", (heads) => heads.get(id));
export const readNodes = async (talk) => (await transact("readonly", (_, nodes) => nodes.getAll(allOf(talk)))) ?? [...(memory.get(talk)?.nodes.values() ?? [])];

export const writeTalk = (head, all) => write(head.id, (heads, nodes) => { for (const node of all) nodes.put(node); return heads.put(head); }, () => {
  const { nodes } = memory.get(head.id) ?? { nodes: new Map() };
  for (const node of all) nodes.set(node.id, node);
  memory.set(head.id, { head, nodes });
});

export const writeHead = (head) => writeTalk(head, []);

export const removeTalk = (talk) => write(talk, (heads, nodes) => { nodes.delete(allOf(talk)); return heads.delete(talk); }, () => memory.delete(talk));

// Another page of this browser has changed a conversation.
export function onChange(tell) {
  if (channel) channel.onmessage = (event) => tell(event.data);
}
