// record.mjs PROBE FOLDER RECORDED: writes to RECORDED (tests/tokenizer/recorded) what other implementations make of some strings, one JSON
// object a line. bpe.jsonl: Hugging Face's library with a made tokenizer. sentencepiece.jsonl: sentencepiece with the
// small tokenizer.model that it trained itself, beside it.
import fs from 'node:fs';
import { spawnSync } from 'node:child_process';
import { Tokenizer as Reference } from 'tokenizers';
import * as sentencepiece from './sentencepiece.mjs';
import { strings } from './strings.mjs';

const [probe, folder, recorded] = process.argv.slice(2);
const write = (name, records) =>
  fs.writeFileSync(`${recorded}/${name}`, records.map((r) => JSON.stringify(r) + '\n').join(''));
const texts = strings(240).slice(1).filter((text) => text.length < 400);

fs.mkdirSync(`${folder}/bpe`, { recursive: true });
spawnSync(probe, ['--make', 2000, 1, `${folder}/bpe`]);
const tokenizer = Reference.fromFile(`${folder}/bpe/tokenizer.json`);
const bpe = [];
for (const text of texts) bpe.push({ text, ids: (await tokenizer.encode(text)).getIds() });
write('bpe.jsonl', bpe);

sentencepiece.train('spm-llama', `${folder}/spm`, 1000);
fs.copyFileSync(`${folder}/spm/tokenizer.model`, `${recorded}/tokenizer.model`);
const ids = sentencepiece.encode(`${folder}/spm`, texts);
write('sentencepiece.jsonl', texts.map((text, i) => ({ text, ids: ids[i] })).filter((r) => r.ids));
