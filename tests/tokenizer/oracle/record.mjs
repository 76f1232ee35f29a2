// record.mjs PROBE FOLDER: writes what the reference makes of some strings with a made tokenizer, one JSON object a line.
// Its output is tests/tokenizer/recorded.jsonl.
import fs from 'node:fs';
import { spawnSync } from 'node:child_process';
import { Tokenizer as Reference } from 'tokenizers';
import { strings } from './strings.mjs';

const [probe, folder] = process.argv.slice(2);
fs.mkdirSync(folder, { recursive: true });
spawnSync(probe, ['--make', 2000, 1, folder]);
const tokenizer = Reference.fromFile(`${folder}/tokenizer.json`);
for (const text of strings(240).slice(1)) {
  if (text.length > 400) continue;
  console.log(JSON.stringify({ text, ids: (await tokenizer.encode(text)).getIds() }));
}
