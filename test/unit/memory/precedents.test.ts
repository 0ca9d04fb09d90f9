// A book tells which sessions of a model had texts like one that is asked about: by what is known of texts alone, with
// what they used and what came of it; and an index that an earlier version saved is made again from the log.
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, expect, test } from 'vitest';
import {
  FINGERPRINT_DIM,
  FINGERPRINT_VERSION,
  fingerprint,
  openHnswIndex,
  openThresholdBook,
  SESSION_FIELDS,
  sessionsOf,
  type TextHint,
  type TimedEntry,
} from '../../../memory/index.ts';

const root = mkdtempSync(join(tmpdir(), 'palimpsest-precedents-'));
afterAll(() => rmSync(root, { recursive: true, force: true }));

const SHAPE = { layers: 2, queryHeads: 4, kvHeads: 2, headDim: 16 };
const TEXT = { bytesPerToken: 4, letterShare: 0.8, foreignShare: 0, distinctShare: 0.5 };
const STYLE = { digest: 'd'.repeat(64), scale: 0.5 };

interface Told {
  readonly tokens?: number;
  readonly bytesPerToken?: number;
  readonly adapters?: readonly (typeof STYLE)[];
  readonly model?: string;
  readonly hint?: TextHint;
}

function session(place: number, { tokens = 1000, bytesPerToken = 4, adapters, model = 'm', hint }: Told): TimedEntry[] {
  const id = `s${place}`;
  const print = [...fingerprint({ ...SHAPE, ...TEXT, bytesPerToken, tokens })];
  const outcome = { tokens, kvBytes: 1, effectiveBits: 4, decisions: 1, priceThreshold: 1e-6, predictedKld: 0.1 };
  const formats = { k: { trellis3: 0.75, q8: 0.25 }, v: { trellis2: 0.5, q8: 0.5 } };
  const rest = { meanKld: null, fingerprint: print, gains: { k: [1, 1], v: [1, 1] }, c: 4, reason: 'done', formats };
  const opened = { model: { digest: model, architecture: 'llama' }, policy: { id: 'price' } };
  return [
    { seq: 2 * place, session: id, kind: 'open', body: adapters === undefined ? opened : { ...opened, adapters } },
    { seq: 2 * place + 1, session: id, kind: 'close', body: { ...outcome, ...rest, ...(hint && { hint }) } },
  ];
}

const bookOf = (entries: readonly TimedEntry[], dir: string | null = null) =>
  openThresholdBook({ dir, logId: 'l', entries: () => entries });
const asked = {
  plainDigest: 'm',
  fingerprint: fingerprint({ ...SHAPE, ...TEXT, tokens: 1000 }),
  k: 16,
  tokensLeast: 128,
};

test('sessions with such texts come first however long they were, with what they used', async () => {
  const entries = [
    ...session(0, { tokens: 8000, adapters: [STYLE] }),
    ...session(1, { bytesPerToken: 2.5 }),
    ...session(2, { tokens: 100 }),
    ...session(3, { model: 'other', adapters: [STYLE] }),
  ];
  const book = await bookOf(entries);
  const seen = await book.precedents(asked);
  expect(seen.map(({ session: id }) => id)).toEqual(['s0', 's1']);
  expect(seen[0]).toEqual({
    ...{ session: 's0', seq: 1, distance: 0, reason: 'done', adapters: [STYLE], bits: 4, formats: 'trellis3:q8' },
  });
  expect(seen[1]).toMatchObject({ adapters: [], distance: 0.25 });
  expect(await book.precedents({ ...asked, k: 1 })).toHaveLength(1);
  await book.close();
});

test('what helpers said moves others away', async () => {
  const kind = (of: string): TextHint => ({ kind: of, share: 1, place: [] });
  const book = await bookOf([...session(0, { hint: kind('code') }), ...session(1, { hint: kind('prose') })]);
  const seen = await book.precedents({ ...asked, hint: kind('prose') });
  expect(seen.map(({ session: id, distance }) => [id, distance])).toEqual([
    ['s1', 0],
    ['s0', 0.25],
  ]);
  await book.close();
});

test('an index of before is made again from the log, and one of its sessions elsewhere is passed over', async () => {
  const entries = session(0, { adapters: [STYLE] });
  const dir = join(root, 'book');
  const old = await openHnswIndex<object>({
    ...{ dim: FINGERPRINT_DIM, fields: SESSION_FIELDS, dir: join(dir, 'experiences') },
    origin: `log l, fingerprint ${FINGERPRINT_VERSION}`,
  });
  const [told] = [...sessionsOf(entries, 'l', FINGERPRINT_DIM)];
  const { plainDigest: _plain, adapters: _adapters, textPlace: _text, ...before } = told!.payload;
  await old.add([{ ...told!, payload: before }]);
  await old.save();
  await old.close();
  const book = await bookOf(entries, dir);
  expect(book.rebuilt).toContain('it was made from');
  expect(await book.precedents(asked)).toMatchObject([{ adapters: [STYLE] }]);
  await book.close();
  const again = await bookOf(entries, dir);
  expect(again.rebuilt).toBeNull();
  expect(await again.precedents(asked)).toMatchObject([{ adapters: [STYLE] }]);
  await again.close();
});
