/** Keys and values of a text that ships with the package, for methods that are fitted to a model before they see what they are to code. */
import { ownText } from '../../engine/evaluate/own-text.ts';
import { RopeTable } from '../../engine/model/rope.ts';
import type { Runtime } from '../../engine/runtime.ts';
import { f16Bytes, type KeptRows, type PageCode, readPaged, unrotate } from './paged.ts';

/** More characters than a token of any tokenizer here takes on average. */
const CHARACTERS_PER_TOKEN = 6;

const known = new WeakMap<Runtime, Map<number, Promise<readonly KeptRows[]>>>();

/** Rows of each layer, [tokens, nd], keys before their rotary embedding, as the exact cache has them. */
export function ownRows(runtime: Runtime, tokens: number): Promise<readonly KeptRows[]> {
  const found = known.get(runtime) ?? new Map<number, Promise<readonly KeptRows[]>>();
  known.set(runtime, found);
  const rows = found.get(tokens) ?? readRows(runtime, tokens);
  found.set(tokens, rows);
  return rows;
}

async function readRows(runtime: Runtime, tokens: number): Promise<readonly KeptRows[]> {
  const { config, tokenizer } = runtime.model;
  const { bosId, addBos } = tokenizer;
  const head = addBos && bosId !== null ? [bosId] : [];
  const ids = [...head, ...tokenizer.encode(ownText(tokens * CHARACTERS_PER_TOKEN))].slice(0, tokens);
  const rows: KeptRows[] = [];
  const exact: PageCode = {
    see: ({ layer }, _start, kept) => {
      rows[layer] = kept;
    },
    code: () => {},
    heldBytes: () => f16Bytes(config, ids.length),
  };
  await readPaged(runtime, ids, () => exact, 1);
  const rope = new RopeTable(config, ids.length);
  for (const { k } of rows) unrotate(k, config.kvHeads, 0, rope, config);
  return rows;
}
