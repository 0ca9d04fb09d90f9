/** The reference model with tokens for marks in place of the last words of its vocabulary, as a folder. */
import { copyFileSync, mkdtempSync, readFileSync, symlinkSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { MODEL } from '../../../on-reference.ts';

/** The caller removes it. */
export function markedModel(marks: readonly string[]): string {
  const folder = mkdtempSync(join(tmpdir(), 'palimpsest-marks-'));
  for (const name of ['config.json', 'tokenizer_config.json']) copyFileSync(join(MODEL, name), join(folder, name));
  symlinkSync(join(MODEL, 'model.safetensors'), join(folder, 'model.safetensors'));
  const file = JSON.parse(readFileSync(join(MODEL, 'tokenizer.json'), 'utf8'));
  const { vocab } = file.model as { vocab: Record<string, number> };
  const first = Object.keys(vocab).length - marks.length;
  const gone = new Set(Object.keys(vocab).filter((word) => vocab[word]! >= first));
  for (const word of gone) delete vocab[word];
  const joined = (merge: string | readonly string[]): string =>
    typeof merge === 'string' ? merge.replace(' ', '') : merge.join('');
  file.model.merges = file.model.merges.filter((merge: string | readonly string[]) => !gone.has(joined(merge)));
  for (const [index, content] of marks.entries())
    file.added_tokens.push({ ...file.added_tokens[0], id: first + index, content });
  writeFileSync(join(folder, 'tokenizer.json'), JSON.stringify(file));
  return folder;
}
