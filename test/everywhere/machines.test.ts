// The tests of native/ once more, on every build that is not the usual one: WebAssembly, the prebuilt binary, an emulated 64-bit
// ARM; then the same random bytes to every kernel of all of them for a minute. Each runs in a process of its own, which must end
// well; what it says is shown when it does not. Minutes of work, so only CI does it (PALIMPSEST_EVERYWHERE).
import { test } from 'vitest';
import { ends, expectWell, MINUTES, node, suite } from './node.ts';

const hasWasm = ends('scripts/build-wasm.mjs', '--check');
const target = `${process.platform}-${process.arch}`;
const makesBinary = ends('scripts/prebuild.mjs', '--tools', target);
const hasArm64 = ends('scripts/test-arm64.mjs', '--missing');

test.skipIf(!hasWasm)(
  'WebAssembly (needs npm run build:wasm)',
  () => {
    const files = ['test/unit/native', 'test/golden/codecs.test.ts', 'test/property/attention.test.ts'];
    expectWell(suite(files, { PALIMPSEST_BINDING: 'wasm', PALIMPSEST_SHORT: '1' }));
  },
  45 * MINUTES,
);

test.skipIf(!hasWasm)(
  'WebAssembly is built twice with the same result (needs npm run build:wasm)',
  () => {
    expectWell(node(['scripts/build-wasm.mjs', '--twice']));
  },
  5 * MINUTES,
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

test.skipIf(!hasArm64)(
  'an emulated 64-bit ARM (needs g++-aarch64-linux-gnu, qemu-user-static and Node for it)',
  () => {
    expectWell(node(['scripts/test-arm64.mjs', '--short']));
  },
  45 * MINUTES,
);

test(
  'a minute of the same random bytes to every kernel of every instruction set',
  () => {
    expectWell(node(['--import', 'tsx', 'test/fuzz/main.ts', '--seconds', '60']));
  },
  5 * MINUTES,
);
