/**
 * Writes packs/NAME/manifest.json: what the packs of ours promise, with vectors of what their modules do.
 *   npm run golden -- packs
 * The modules are built before (scripts/build-packs.mjs). If a vector changes, so does the version of the pack.
 */
import { createHash } from 'node:crypto';
import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { instrumentModule } from '../engine/packs/instrument.ts';
import { type CodecManifest, type KernelManifest, type PackManifest, readManifest } from '../engine/packs/manifest.ts';
import { vectorOf } from '../engine/packs/vectors.ts';

const packs = fileURLToPath(new URL('../packs', import.meta.url));

/** The bytes of the sources, one after the other. */
const sourceDigest = (name: string): string =>
  ['pack.h', `${name}/${name}.c`]
    .reduce((hash, file) => hash.update(readFileSync(join(packs, file))), createHash('sha256'))
    .digest('hex');

const common = (name: string): Omit<CodecManifest, 'kind' | 'formats' | 'vectors'> => ({
  name,
  version: '1.0.0',
  abi: 1,
  engine: { from: '0.1.0', below: '1.0.0' },
  features: ['simd128', 'bulk-memory'],
  source: {
    sha256: sourceDigest(name),
    builder: 'the maintainers of palimpsest',
    packages: ['clang-19 1:19.1.7-3~deb12u1', 'lld-19 1:19.1.7-3~deb12u1'],
    command: 'node scripts/build-packs.mjs',
  },
  supersedes: [],
});

const moduleOf = (name: string): Uint8Array => instrumentModule(readFileSync(join(packs, name, `${name}.wasm`)));

function block6(): CodecManifest {
  const module = moduleOf('block6');
  const shapes = [
    { seed: 1, tokens: 128, dim: 64, queries: 4 },
    { seed: 2, tokens: 128, dim: 128, queries: 1 },
    { seed: 3, tokens: 17, dim: 96, queries: 3 },
    { seed: 4, tokens: 1, dim: 256, queries: 8 },
  ];
  return {
    kind: 'codec',
    ...common('block6'),
    formats: [
      {
        ...{ name: 'block6', side: 'both', bits: 6.5 },
        bytes: { elementBits: 6.5, tokenBytes: 0, channelBytes: 0, headBytes: 0 },
        // The bound of its page (packs/block6/block6.c), and what rounding adds.
        errorMost: 0.093,
        known: null,
        fuelPerToken: 1200,
      },
    ],
    vectors: shapes.map((shape) => vectorOf(module, shape)),
  };
}

function rope(): KernelManifest {
  const module = moduleOf('rope');
  const shapes = [
    { seed: 1, tokens: 128, dim: 64, width: 64 },
    { seed: 2, tokens: 17, dim: 128, width: 128 },
    { seed: 3, tokens: 3, dim: 80, width: 20 },
  ];
  return {
    kind: 'elementwise',
    ...common('rope'),
    kernels: [{ name: 'rope', fuelPerToken: 1000 }],
    vectors: shapes.map((shape) => vectorOf(module, shape)),
  };
}

const manifests: readonly PackManifest[] = [block6(), rope()];
for (const manifest of manifests) {
  readManifest(manifest, manifest.name);
  writeFileSync(join(packs, manifest.name, 'manifest.json'), `${JSON.stringify(manifest, null, 2)}\n`);
}
