/**
 * `palimpsest adapters …` says what an adapter adds to a model and whether it is the one that a digest names, and keeps
 * those that a state folder knows by name.
 */
import { columnsOf, fields, jsonText, KvError } from '../../native/index.ts';
import { proposalText } from '../../witness/index.ts';
import { proposalFor } from '../adapters/proposal.ts';
import { readAdapter } from '../adapters/read.ts';
import { AdapterRegistry, registeredInfo } from '../adapters/registry.ts';
import type { AdapterInfo } from '../adapters/types.ts';
import { countedTokens, tokenize } from '../session/prompt.ts';
import { TextHelpers } from '../sidecar/hint.ts';
import { readBook } from '../state/folder.ts';
import { asksHelpers } from '../thread/engine-options.ts';
import { loadModel } from '../transformer/load.ts';
import { cacheDirOf, flag, qdrantOptions, type Settings, stateDirOf, text } from './options.ts';
import { readText } from './read-text.ts';

/** The model that adapters are read for where none is named. */
const MODEL = 'reference';

const registry = (settings: Settings): AdapterRegistry => new AdapterRegistry(stateDirOf(settings));

/** Throws what reading the model and the adapter throws, and 'io'. */
export async function add(settings: Settings, name: string, path: string): Promise<void> {
  const model = await loadModel(text(settings, 'model') ?? MODEL, { cacheDir: cacheDirOf(settings) });
  try {
    const added = registry(settings).add(name, readAdapter(path, model), model);
    say(settings, registeredInfo(added), `${name} is ${added.digest} for ${model.name}`);
  } finally {
    model.weights.close();
  }
}

export function list(settings: Settings): void {
  const all = registry(settings).list();
  const rows = all.map((one): [string, string] => [
    one.name,
    `${one.digest.slice(0, 12)}  ${one.format}, ${one.matrices} matrices of ${one.slots.join(' ')}, ${ranksText(one.ranks)}`,
  ]);
  const plain = rows.length === 0 ? 'no adapter is registered' : fields(rows, columnsOf(process.stdout));
  say(settings, all.map(registeredInfo), plain);
}

/** Throws 'not-found'. */
export function remove(settings: Settings, name: string): void {
  const removed = registry(settings).remove(name);
  say(settings, registeredInfo(removed), `${name} is forgotten; it was ${removed.digest}`);
}

const ranksText = ([least, most]: readonly [number, number]): string =>
  least === most ? `rank ${least}` : `ranks ${least} to ${most}`;
const say = (settings: Settings, json: unknown, plain: string): unknown =>
  process.stdout.write(`${flag(settings, 'json') ? jsonText(json) : plain}\n`);

/** What sessions with a text like that of a file used. Throws what reading the model, the text and the log throws. */
export async function propose(settings: Settings, path: string): Promise<void> {
  const content = await readText(path, 'text');
  const model = await loadModel(text(settings, 'model') ?? MODEL, { cacheDir: cacheDirOf(settings) });
  let helpers: TextHelpers | null = null;
  try {
    helpers = await helpersOf(settings);
    const hintOf = (said: Uint8Array) => helpers?.hintOf(said) ?? Promise.resolve(null);
    const book = await readBook(stateDirOf(settings), qdrantOptions(settings));
    try {
      const ids = tokenize(model.tokenizer, content, true, countedTokens(model));
      const { layers, queryHeads, kvHeads, headDim } = model.config;
      const source = { model, shape: { layers, queryHeads, kvHeads, headDim }, book, hintOf };
      const proposal = await proposalFor(source, ids);
      const names = registry(settings).namesFor(model);
      const named = proposal.adapters.map((one) => ({ name: names.get(one.digest) ?? null, ...one }));
      say(
        settings,
        { ...proposal, adapters: named },
        `${loraText(named)}\n${proposalText(proposal, proposal.adapters)}`,
      );
    } finally {
      await book.close();
    }
  } finally {
    await helpers?.close();
    model.weights.close();
  }
}

/** Those that an engine with these settings asks; null: none. Throws what opening and trying them throws. */
async function helpersOf(settings: Settings): Promise<TextHelpers | null> {
  const embedder = text(settings, 'embedder');
  if (!asksHelpers({ helpers: settings['helpers'] as boolean | undefined, embedder })) return null;
  const helpers = new TextHelpers({ embedder });
  try {
    await helpers.check();
    return helpers;
  } catch (error) {
    await helpers.close();
    throw error;
  }
}

/** What --lora would be given. */
function loraText(
  adapters: readonly { readonly name: string | null; readonly digest: string; readonly scale: number }[],
) {
  if (adapters.length === 0) return 'none';
  const one = ({ name, digest, scale }: (typeof adapters)[number]): string =>
    name === null ? `${digest.slice(0, 12)} (not known here)` : scale === 1 ? name : `${name}:${scale}`;
  return adapters.map(one).join(' ');
}

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
