// What no log can hold: options and answers of a policy of one's own that the readers of a log would refuse. They are
// refused where they come in, nothing of them is written, and the state folder stays open to everybody.
import { expect, it } from 'vitest';
import { type Decision, type OpenCacheOptions, openCache, type Policy } from '../../../../engine/index.ts';
import { logDir } from '../../../../engine/state/folder.ts';
import { nativeInfo } from '../../../../native/index.ts';
import { defaultThresholds, type Verdict } from '../../../../policy/index.ts';
import { readLog, verifyLog } from '../../../../witness/index.ts';
import { normals, uniform } from '../../../native/dense.ts';
import { scratchFolders } from '../../witness/folder.ts';

const folder = scratchFolders();
const SHAPE = { layers: 2, queryHeads: 2, kvHeads: 1, headDim: 64 } as const;

/** Fills some pages, so that a policy is asked. */
async function use(options: Partial<OpenCacheOptions> & { readonly stateDir: string }): Promise<void> {
  const cache = await openCache({ ...SHAPE, ...options });
  const random = uniform(43);
  try {
    for (let i = 0; i < 5; i++) {
      for (let layer = 0; layer < SHAPE.layers; layer++) {
        cache.append(layer, normals(random, 128 * 64), normals(random, 128 * 64));
        cache.attention(layer, normals(random, 128 * 128));
      }
    }
  } finally {
    await cache.close();
  }
}

/** Moves values to 4 bits, and answers what is given in the place of what is right. */
const answering = (wrong: Partial<Record<keyof Decision, unknown>>, verdict: object = {}, id = 'odd'): Policy => ({
  id,
  version: 1,
  needsTrials: false,
  open: ({ pageBytes }) => ({
    decide: ({ trials }) =>
      trials
        .filter(({ side }) => side === 'v')
        .map(({ layer, page, side, from }) => {
          const because = { threshold: 'v', measured: 8, bound: 4, unit: 'bits', origin: 'option', rule: 'v' } as const;
          const bytesFreed = (pageBytes[from] ?? 0) - pageBytes.rot4;
          const unknown = { epsilonFrom: null, epsilonTo: null, price: null };
          return { layer, page, side, from, to: 'rot4', ...unknown, bytesFreed, retry: false, because, ...wrong };
        }) as Decision[],
    judge: ({ because }) => ({ accepted: true, because, ...verdict }) as Verdict,
    summary: () => ({ priceThreshold: 0, predictedKld: 0, layerStates: [], layerEpsilonMax: [], layerKld: [] }),
  }),
});

const thresholds = defaultThresholds(SHAPE.layers);
const withThreshold = (change: object) => ({
  ...thresholds,
  thresholds: {
    ...thresholds.thresholds,
    'pressure.enter': { ...thresholds.thresholds['pressure.enter']!, ...change },
  },
});

const because = { threshold: 'v', measured: 8, bound: 4, unit: 'bits', origin: 'mine', rule: 'v' };
const LONG = 'x'.repeat(5000);
it.each<[string, Partial<OpenCacheOptions>, RegExp]>([
  ['a digest of 5,000 characters', { modelDigest: LONG }, /digest/],
  ['a policy whose name has 5,000', { policy: answering({}, {}, LONG) }, /policy/],
  ['a threshold with -1 samples', { thresholds: withThreshold({ samples: -1 }), kvBudget: '2MiB' }, /samples/],
  [
    'one with 100,000 pieces of evidence',
    { thresholds: withThreshold({ evidence: new Array(100_000).fill(1) }) },
    /evidence/,
  ],
  ['half a byte that is freed', { policy: answering({ bytesFreed: 4096.5 }) }, /bytesFreed/],
  ['an origin of its own', { policy: answering({ because }) }, /origin/],
  ['a verdict of 1', { policy: answering({}, { accepted: 1 }) }, /accepted/],
])('%s is refused by the name of the field, and nobody is locked out', async (_, options, field) => {
  const stateDir = folder();
  const refused = await use({ ...options, stateDir }).catch((error: unknown) => error);
  expect(refused).toMatchObject({ message: expect.stringMatching(field) });
  expect(['bad-value', 'bad-argument', 'bad-thresholds']).toContain((refused as { code: string }).code);
  await use({ policy: answering({}), stateDir });
  expect(verifyLog(logDir(stateDir))).toMatchObject({ ok: true });
  const decisions = [...readLog(logDir(stateDir), { kinds: ['decision'] })];
  expect(decisions.length).toBeGreaterThan(0);
});

it('a layer that is named 5,000 times is one', async () => {
  const stateDir = folder();
  await use({ policy: answering({}), skipLayers: new Array(5000).fill(1), stateDir });
  const [open] = readLog(logDir(stateDir), { kinds: ['open'] });
  expect(open).toMatchObject({ body: { context: { skipLayers: [1] } } });
});

it('the log names what computed: instruction set, binding, build and threads', async () => {
  const stateDir = folder();
  await use({ stateDir, threads: 2 });
  const [open] = [...readLog(logDir(stateDir), { kinds: ['open'] })];
  const { isa, binding, abi } = nativeInfo();
  expect((open!.body as { machine: object }).machine).toEqual({
    isa,
    binding,
    build: expect.stringMatching(new RegExp(`^palimpsest \\d.*${abi}`)),
    threads: 2,
  });
});
