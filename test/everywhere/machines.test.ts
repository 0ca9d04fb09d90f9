/**
 * The tests of native/ once more, on builds of this machine that are not the usual one: WebAssembly and the prebuilt
 * binary; then the same random bytes to every kernel of all of them. Each runs in a process of its own, which must end
 * well; what it says is shown when it does not. Nothing shorter shows that other vectors and other compilers give the
 * same bits.
 */
import { test } from 'vitest';
import { filesInTurn, isNightFor, volume } from '../tier.ts';
import { ends, expectWell, IN_TURN, MINUTES, node, onBinary, suite } from './node.ts';

const SECONDS = volume('kernel seconds');
const hasWasm = ends('scripts/build-wasm.mjs', '--check');
const target = `${process.platform}-${process.arch}`;
const makesBinary = ends('scripts/prebuild.mjs', '--tools', target);

test.skipIf(!hasWasm)(
  'WebAssembly (needs npm run build:wasm)',
  () => {
    const all = [...onBinary, 'test/golden/codecs.test.ts', 'test/property/attention.test.ts'];
    const turn = filesInTurn(IN_TURN);
    const files = all.filter((file) => !IN_TURN.flat().includes(file) || turn.files.includes(file));
    expectWell(suite(files, { ...turn.env, PALIMPSEST_BINDING: 'wasm', PALIMPSEST_TEST_SHORT: '1' }));
  },
  45 * MINUTES,
);

// A night's proof: it compiles all of it once more. Elsewhere it is no test at all, so that nothing is told as skipped
// that nobody lacks anything for.
if (isNightFor('WebAssembly built twice'))
  test.skipIf(!hasWasm)(
    'WebAssembly is built twice with the same result (needs npm run build:wasm)',
    () => {
      expectWell(node(['scripts/build-wasm.mjs', '--twice']));
    },
    10 * MINUTES,
  );

test.skipIf(!makesBinary)(
  'the prebuilt binary, which is there (needs a compiler and objdump)',
  () => {
    expectWell(node(['scripts/prebuild.mjs', '--check', target]));
    expectWell(
      suite(['test/unit/native/attend.test.ts', 'test/unit/native/cache.test.ts'], { PALIMPSEST_BINDING: 'prebuilt' }),
    );
  },
  5 * MINUTES,
);

test(
  `${SECONDS} seconds of the same random bytes to every kernel of every instruction set`,
  () => {
    expectWell(node(['--import', 'tsx', 'test/fuzz/main.ts', '--seconds', String(SECONDS)]));
  },
  5 * MINUTES,
);
