/** `palimpsest adapters …` says what an adapter adds to a model, and whether it is the one that a digest names. */
import { columnsOf, fields, jsonText, KvError } from '../../native/index.ts';
import { readAdapter } from '../adapters/read.ts';
import type { AdapterInfo } from '../adapters/types.ts';
import { loadModel } from '../transformer/load.ts';
import { cacheDirOf, flag, type Settings, text } from './options.ts';

/** The model that adapters are read for where none is named. */
const MODEL = 'reference';

/** Throws what reading the model and the adapter throws. */
async function read(settings: Settings, path: string): Promise<AdapterInfo & { readonly model: string }> {
  const model = await loadModel(text(settings, 'model') ?? MODEL, { cacheDir: cacheDirOf(settings) });
  try {
    const { added: _, ...info } = readAdapter(path, model);
    return { model: model.name, ...info };
  } finally {
    model.weights.close();
  }
}

export async function inspect(settings: Settings, path: string): Promise<void> {
  const { slots, ranks, ...info } = await read(settings, path);
  const rows: [string, string][] = [
    ...Object.entries(info).map(([name, value]): [string, string] => [name, String(value)]),
    ['slots', slots.join(' ')],
    ['ranks', ranks[0] === ranks[1] ? String(ranks[0]) : ranks.join(' to ')],
  ];
  const plain = `adapter\n${fields(rows, columnsOf(process.stdout))}`;
  process.stdout.write(`${flag(settings, 'json') ? jsonText({ ...info, slots, ranks }) : plain}\n`);
}

/** Throws 'checksum-mismatch' where the adapter is another one. digest: the whole, or how it begins. */
export async function verify(settings: Settings, path: string, digest: string): Promise<void> {
  if (!/^[0-9a-f]{8,64}$/.test(digest))
    throw new KvError('bad-argument', 'a digest has 64 hexadecimal digits, of which the first 8 or more are given', {
      values: { digest: digest.slice(0, 80) },
      hint: 'the open entry of a session has it: palimpsest audit show ID',
    });
  const { digest: actual, model } = await read(settings, path);
  if (!actual.startsWith(digest))
    throw new KvError('checksum-mismatch', `${path} adds something else to ${model} than ${digest} does`, {
      values: { path, model, expected: digest, actual },
    });
  const told = { path, model, digest: actual, verified: true };
  process.stdout.write(`${flag(settings, 'json') ? jsonText(told) : `${path} is ${actual} for ${model}`}\n`);
}
