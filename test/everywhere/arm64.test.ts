/**
 * Tests of native/ once more on an emulated 64-bit ARM, in a Node for it (scripts/test-arm64.mjs): kernels and
 * attention always, golden codes and products in turn. Nothing shorter shows that the kernels of NEON give the bits of
 * the others; it takes minutes because every instruction is emulated.
 */
import { expect, test } from 'vitest';
import { isDealt, isNightFor } from '../tier.ts';
import { ends, MINUTES, node } from './node.ts';

const hasArm64 = ends('scripts/test-arm64.mjs', '--missing');

test.skipIf(!hasArm64)(
  'an emulated 64-bit ARM (needs g++-aarch64-linux-gnu, qemu-user-static and Node for it)',
  () => {
    const more = [
      ...['--golden', '--products'].filter((_, place) => isDealt(place, 2)),
      ...(isNightFor('codecs on an emulated ARM') ? ['--codecs'] : []),
    ];
    const { status, said } = node(['scripts/test-arm64.mjs', '--short', ...more]);
    console.log(said.match(/^test.* s\)$/gm)?.join('\n') ?? '');
    expect({ status, said: status === 0 ? '' : said.slice(-8000) }).toEqual({ status: 0, said: '' });
  },
  45 * MINUTES,
);
