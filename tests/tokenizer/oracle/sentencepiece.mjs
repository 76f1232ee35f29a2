// Debian's sentencepiece as a witness for tokenizer.model: small models are trained on the spot.
import fs from 'node:fs';
import { spawnSync } from 'node:child_process';
import { sentences, strings } from './strings.mjs';

function tool(name, args, input) {
  const { status, stdout, stderr, error } = spawnSync(name, args, { input, maxBuffer: 1 << 30, encoding: 'utf8' });
  if (status !== 0) throw Error(`${name}: ${error ?? stderr} (Debian's package sentencepiece has it)`);
  return stdout;
}

export const kinds = {
  'spm-llama': ['--byte_fallback=true', '--split_digits=true'],
  'spm-unknown': ['--byte_fallback=false'],
  'spm-no-prefix': ['--byte_fallback=true', '--add_dummy_prefix=false'],
  'spm-across-spaces': ['--byte_fallback=true', '--split_by_whitespace=false'],
  'spm-any-script': ['--byte_fallback=true', '--split_by_unicode_script=false', '--split_by_number=false',
    '--allow_whitespace_only_pieces=true'],
};

// One line is one text for these tools.
const isLine = (text) => text !== '' && !/[\0\n\r]/.test(text);

export function train(kind, folder, vocab_size = 2000) {
  fs.mkdirSync(folder, { recursive: true });
  const corpus = [...Array(30).fill(sentences).flat(), ...strings(2000, 7)];
  fs.writeFileSync(`${folder}/corpus.txt`, corpus.filter(isLine).join('\n') + '\n');
  const run = spawnSync('spm_train', ['--input=corpus.txt', '--model_prefix=tokenizer', '--model_type=bpe', `--vocab_size=${vocab_size}`,
    '--character_coverage=0.98', '--normalization_rule_name=identity', '--remove_extra_whitespaces=false',
    '--num_threads=1', ...kinds[kind]], { cwd: folder, encoding: 'utf8' });
  if (run.status !== 0) throw Error(`spm_train: ${run.error ?? run.stderr.slice(-500)} (Debian's package sentencepiece has it)`);
}

// The ids of each text that is a line, undefined for the others.
export function encode(folder, texts) {
  const lines = texts.filter(isLine);
  const out = tool('spm_encode', [`--model=${folder}/tokenizer.model`, '--output_format=id'], lines.join('\n') + '\n').split('\n');
  let at = 0;
  return texts.map((text) => (isLine(text) ? out[at++].split(' ').filter(Boolean).map(Number) : undefined));
}

export function decode(folder, lists) {
  return tool('spm_decode', [`--model=${folder}/tokenizer.model`, '--input_format=id'],
    lists.map((ids) => ids.join(' ')).join('\n') + '\n').split('\n').slice(0, lists.length);
}
