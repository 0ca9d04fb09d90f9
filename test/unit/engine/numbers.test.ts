/**
 * Every number that a caller gives beside options: what is no count, no place and no measurement is refused with one
 * KvError, and nothing is lost by it. Options are refused by their rows (options/table.test.ts).
 */
import { join } from 'node:path';
import { inspect } from 'node:util';
import { afterAll, beforeAll, expect, it } from 'vitest';
import {
  createEngine,
  type Engine,
  type EngineSession,
  explain,
  KvError,
  openCache,
  openLogQuery,
  openPool,
  openSessionIndex,
  type PolicyCache,
  proveEntry,
  type SessionIndex,
  whyNot,
} from '../../../engine/index.ts';
import type { Session } from '../../../engine/session/session.ts';
import { logDir } from '../../../engine/state/folder.ts';
import { FINGERPRINT_DIM } from '../../../memory/index.ts';
import { scratchFolders } from '../witness/folder.ts';
import { ids, MODEL } from './on-reference.ts';
import { onRuntime } from './on-runtime.ts';

const folder = scratchFolders();
const { open } = onRuntime();
const ODD: readonly unknown[] = [Number.NaN, -1, 1.5, Number.POSITIVE_INFINITY, 2 ** 53, '7', null, {}, [1], 7n];
/** Those that no measurement is, but some times and errors may be. */
const NO_NUMBER: readonly unknown[] = [Number.NaN, '7', null, {}, [1], 7n];

let dir: string;
let engine: Engine;
let session: EngineSession;
let cache: PolicyCache;
let index: SessionIndex;
let inner: Session;
const SHAPE = { layers: 2, queryHeads: 2, kvHeads: 2, headDim: 64 };
const rows = (tokens: number): Float32Array => new Float32Array(tokens * 128).fill(0.5);

beforeAll(async () => {
  dir = join(folder(), 'state');
  engine = await createEngine({ model: MODEL, threads: 1, stateDir: dir });
  session = await engine.openSession({ kvBudget: '40%', tokensExpected: 700, originals: 'memory' });
  await session.read(ids(650));
  await session.flush();
  cache = await openCache(SHAPE);
  for (const layer of [0, 1]) {
    cache.append(layer, rows(300), rows(300));
    cache.attention(layer, rows(300));
  }
  index = await openSessionIndex({ stateDir: dir });
  inner = open({});
  await inner.read(ids(200));
});
afterAll(async () => {
  inner?.close();
  await index?.close();
  await cache?.close();
  await engine?.close();
});

type Call = (value: never) => unknown;
const log = (): string => logDir(dir);
const query = () => openLogQuery(log());
const counts: Readonly<Record<string, Call>> = {
  'engine.forecast': (n) => engine.forecast(n),
  'engine.tokenize, the most': (n) => engine.tokenize('a', n),
  'session.read, a token': (n) => session.read([n]),
  'session.generate, a token': (n) => session.generate([n], { maxTokens: 1 }).result,
  'session.restore, the layer': (n) => session.restore(n, 0),
  'session.restore, the page': (n) => session.restore(0, n),
  'cache.truncate': (n) => cache.truncate(n),
  'cache.append, the layer': (n) => cache.append(n, rows(1), rows(1)),
  'cache.attention, the layer': (n) => cache.attention(n, rows(1)),
  'cache.restore, the layer': (n) => cache.restore(n, 0),
  'cache.restore, the page': (n) => cache.restore(0, n),
  openPool: (n) => openPool(n),
  explain: (n) => explain(log(), n),
  proveEntry: (n) => proveEntry(log(), n, []),
  'whyNot, the layer': (layer) => whyNot(log(), session.id, { layer, page: 0 }),
  'whyNot, the page': (page) => whyNot(log(), session.id, { layer: 0, page }),
  'decisions, the limit': (limit) => query().decisions({ limit }),
  'sessions, the limit': (limit) => query().sessions({ limit }),
  'decisions, beforeSeq': (beforeSeq) => query().decisions({ beforeSeq }),
  'nearestSessions, k': (k) =>
    index.nearestSessions(
      Array.from({ length: FINGERPRINT_DIM }, () => 0.5),
      k,
    ),
  'session.rewind within': (n) => inner.rewind(n),
};
const measurements: Readonly<Record<string, Call>> = {
  'session.adaptThresholds': (meanKld) => session.adaptThresholds({ meanKld }),
  'cache.adaptThresholds': (meanKld) => cache.adaptThresholds({ meanKld }),
  'decisions, the layer': (layer) => query().decisions({ layer }),
  'decisions, the page': (page) => query().decisions({ page }),
  'decisions, fromMs': (fromMs) => query().decisions({ fromMs }),
  'decisions, toMs': (toMs) => query().decisions({ toMs }),
  'decisions, tokensMin': (tokensMin) => query().decisions({ tokensMin }),
  'decisions, tokensMax': (tokensMax) => query().decisions({ tokensMax }),
  'decisions, epsilonTo': (min) => query().decisions({ epsilonTo: { min } }),
  'sessions, fromMs': (fromMs) => query().sessions({ fromMs }),
  'sessions, toMs': (toMs) => query().sessions({ toMs }),
  'counts, the layer': (layer) => query().counts('layer', { layer }),
};

const outcome = async (call: Call, value: unknown): Promise<string> => {
  try {
    await call(value as never);
    return 'accepted';
  } catch (error) {
    return error instanceof KvError ? error.code : `${(error as Error).name}: ${(error as Error).message}`;
  }
};

it('that is no count, place or measurement is refused with one KvError', async () => {
  const wrong: string[] = [];
  for (const [calls, values] of [
    [counts, ODD],
    [measurements, NO_NUMBER],
  ] as const)
    for (const [name, call] of Object.entries(calls))
      for (const value of values) {
        const found = await outcome(call, value);
        // A list of what is no number is a conversation, for which this model has no template.
        const isTold = name.endsWith('a token') && found === 'bad-tokenizer';
        const isFine = /^(bad-argument|bad-value|not-found|unsupported)$/.test(found);
        if (!isFine && !isTold) wrong.push(`${name} ${inspect(value)}: ${found}`);
      }
  expect(wrong).toEqual([]);
  // Nothing was lost: all of them go on.
  await session.generate(null, { maxTokens: 2 }).result;
  expect((await session.report()).tokens).toBe(652);
  expect(inner.tokens).toHaveLength(200);
  await inner.read(ids(9));
  cache.append(0, rows(1), rows(1));
  cache.append(1, rows(1), rows(1));
  for (const layer of [0, 1]) cache.attention(layer, rows(1));
  expect(cache.qualityMetrics().tokens).toBe(301);
});
