/**
 * The quality of caches with activations of 16 bits, of 8 in the matrices that `activations: 'auto'` chooses, and of 8
 * in all: the divergence of the last 512 tokens of a text from the exact cache with 16 bits, at several budgets.
 */
import {
  type CacheSpec,
  evaluate,
  type MethodSpec,
  parseCache,
  SCORED_TOKENS,
} from '../../engine/evaluate/evaluate.ts';
import { setupOf } from '../../engine/session/experience.ts';
import { Session } from '../../engine/session/session.ts';
import type { Runtime } from '../../engine/transformer/runtime/runtime.ts';
import { columns, fixed } from './table.ts';

const CACHES = ['exact', 'price@25%', 'price@15%'];

export interface RoundedQuality<Way extends string> {
  readonly way: Way;
  readonly cache: string;
  readonly bits: number;
  /** By text, in nats. */
  readonly kld: Readonly<Record<string, number>>;
}

/** A cache of a session, read in one of the ways; what follows it is exact again. */
function readIn<Way extends string>(
  way: Way,
  exact: Way,
  { name, options }: CacheSpec,
  use: (way: Way) => void,
): MethodSpec {
  return {
    name: `${name} ${way}`,
    method: async (runtime, { ids }) => {
      const asked = { ...options, tokensExpected: ids.length, compareTokens: SCORED_TOKENS };
      use(way);
      const session = Session.open(runtime, await setupOf(runtime, asked, { book: null, log: null }));
      try {
        await session.read([...ids]);
        const { kvBytes: bytes, kvBytesF16: bytesF16 } = session.report();
        return { hidden: session.hiddenRows(), bytes, bytesAtRest: bytes, bytesF16 };
      } finally {
        session.close();
        use(exact);
      }
    },
  };
}

/**
 * Reads so many tokens of each text in each way, of which the first is what all are compared with. `use` lets the dense
 * half compute in one of them.
 */
export async function roundedQuality<Way extends string>(
  say: (line: string) => void,
  {
    runtime,
    texts,
    ways,
    tokens,
    use,
  }: {
    readonly runtime: Runtime;
    readonly texts: readonly (readonly [string, string])[];
    readonly ways: readonly [Way, ...Way[]];
    readonly tokens: number;
    readonly use: (way: Way) => void;
  },
): Promise<RoundedQuality<Way>[]> {
  const [exact] = ways;
  use(exact);
  const cases = CACHES.flatMap((cache) => ways.map((way) => ({ way, cache })));
  const rows = await evaluate(runtime, {
    texts: texts.map(([name, content]) => ({ name, content })),
    caches: cases.map(({ way, cache }) => readIn(way, exact, parseCache(cache), use)),
    ...{ tokens, windows: 1, recallDocuments: 0, seed: 1 },
    onRow: ({ text, cache, effectiveBits, meanKld }) =>
      say(`  ${text}: ${cache} bits, ${fixed(effectiveBits, 2)} of the cache, KLD ${meanKld.toExponential(2)}`),
  });
  const found = cases.map(({ way, cache }) => {
    const own = rows.filter((row) => row.cache === `${cache} ${way}`);
    const bits = own.reduce((sum, row) => sum + row.effectiveBits, 0) / own.length;
    return { way, cache, bits, kld: Object.fromEntries(own.map((row) => [row.text, row.meanKld])) };
  });
  const names = texts.map(([name]) => name);
  const table = found.map(({ way, cache, bits, kld }) => [
    ...[cache, way, fixed(bits, 2)],
    ...names.map((name) => kld[name]!.toExponential(2)),
  ]);
  for (const line of columns(['cache', 'activations', 'bits', ...names], table)) say(`  ${line}`);
  return found;
}
