// The list of conversations: search, names, removal that can be undone, files of them.
import { $, ask, download, el, toast } from "./dom.js";
import { onChange, readHead, readHeads, readNodes, removeTalk, store } from "./store.js";
import { exported, imported, Talk } from "./talk.js";

let heads = [], shownId = null, hooks = {};  // hooks: open(talk), fresh(), isAnswering(id), changed(id), drop(id)

export const loadTalk = async (head) => new Talk(head, await readNodes(head.id));

const day = new Intl.DateTimeFormat(undefined, { dateStyle: "medium" }), clock = new Intl.DateTimeFormat(undefined, { timeStyle: "short" });
const when = (time) => new Date(time).toDateString() === new Date().toDateString() ? clock.format(time) : day.format(time);

function found() {
  const words = $("talk-search").value.toLowerCase().split(/\s+/).filter(Boolean);
  return heads.filter((head) => words.every((word) => head.title.toLowerCase().includes(word) || head.text.includes(word))).sort((a, b) => b.changed - a.changed);
}

function line(head) {
  const isShown = head.id === shownId, name = head.title || "Without a name";
  const button = (text, onclick) => el("button", { class: "quiet", "aria-label": `${text} ${name}`, onclick }, text);
  return el("li", { class: isShown ? "chosen" : null },
    el("button", { class: "talk-name", "aria-current": isShown ? "true" : null, onclick: () => open(head) }, el("span", {}, name),
      el("small", {}, hooks.isAnswering(head.id) ? "answering …" : when(head.changed))),
    isShown ? el("div", { class: "talk-tools" }, button("Rename", () => rename(head)), button("Export", () => save([head])), button("Delete", () => remove(head))) : null);
}

export function showList() {
  const all = found();
  $("talk-list").replaceChildren(...all.map(line));
  $("talk-note").textContent = !store.keeps ? "This browser keeps nothing: conversations last as long as the page." :
    heads.length && !all.length ? "No conversation has these words." : "Kept in this browser alone.";
  $("talk-export").disabled = !heads.length;
}

async function open(head) {
  try {
    hooks.open(await loadTalk(head));
  } catch (error) {
    toast(`The conversation cannot be read: ${error.message}`);
  }
}

async function rename(head) {
  const name = await ask("Name of the conversation", head.title);
  if (!name) return;
  await hooks.talkOf(head).rename(name);
  head.title = name;
  showList();
}

async function remove(head) {
  const talk = await loadTalk(head);
  heads = heads.filter((other) => other.id !== head.id);
  hooks.drop(head.id);
  await removeTalk(head.id);
  if (head.id === shownId) hooks.fresh();
  showList();
  toast(`“${head.title || "Without a name"}” is deleted.`, "Undo", async () => {
    heads.push(head);
    await talk.saveAll();
    hooks.open(talk);
  });
}

async function save(which) {
  const talks = await Promise.all(which.map(loadTalk));
  const name = which.length === 1 ? which[0].title.replace(/[^\p{L}\p{N}]+/gu, "-").slice(0, 40) || "conversation" : "conversations";
  download(`invar-${name}.json`, exported(talks));
}

async function load(files) {
  for (const file of files) {
    try {
      const talks = imported(await file.text());
      for (const talk of talks) {
        if (!talk.head.title) talk.head.named = false;
        await talk.saveAll();
        heads.push(talk.head);
      }
      toast(`${file.name}: ${talks.length} ${talks.length === 1 ? "conversation" : "conversations"} imported.`);
      if (talks.length) hooks.open(talks.at(-1));
    } catch (error) {
      toast(`${file.name}: ${error.message}`);
    }
  }
  showList();
}

// The conversation that is seen, new or changed.
export function note(talk) {
  shownId = talk.head.id;
  touch(talk);
}

export function touch(talk) {
  const at = heads.findIndex((head) => head.id === talk.head.id);
  if (at >= 0) heads[at] = talk.head;
  else if (!talk.isEmpty) heads.push(talk.head);
  showList();
}

export async function begin(given) {
  hooks = given;
  $("talk-search").addEventListener("input", showList);
  $("talk-export").addEventListener("click", () => save(heads));
  $("talk-import").addEventListener("change", async () => { await load([...$("talk-import").files]); $("talk-import").value = ""; });
  $("new-chat").addEventListener("click", () => hooks.fresh());
  heads = await readHeads();
  onChange(async (id) => {
    const head = await readHead(id);
    heads = heads.filter((one) => one.id !== id).concat(head ?? []);
    showList();
    hooks.changed(id, head);
  });
  showList();
  return heads;
}
