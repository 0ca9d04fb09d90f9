/**
 * Contract vectors: what a module makes of numbers that follow from a seed. They are sums of whole numbers, so they are
 * the same on every machine; so is what a module makes of them, and the fuel that it takes.
 */
import { createHash } from 'node:crypto';
import { PackInstance } from './instance.ts';
import { PackKernel } from './kernel.ts';
import type { CompiledModule } from './machine.ts';
import type { CodecVector, KernelVector } from './manifest.ts';

/** Numbers about like those of a normal distribution, exact in float32: splitmix32, four draws for each. */
export function drawn(seed: number, count: number): Float32Array {
  let state = seed >>> 0;
  const draw = (): number => {
    state = (state + 0x9e3779b9) >>> 0;
    let z = state;
    z = Math.imul(z ^ (z >>> 16), 0x21f0aaad);
    z = Math.imul(z ^ (z >>> 15), 0x735a2d97);
    return (z ^ (z >>> 15)) >>> 16;
  };
  return Float32Array.from({ length: count }, () => (draw() + draw() + draw() + draw() - 2 * 65_535) / 2 ** 15);
}

const digestOf = (data: Uint8Array | Float32Array): string =>
  createHash('sha256')
    .update(new Uint8Array(data.buffer, data.byteOffset, data.byteLength))
    .digest('hex');

/** The largest fuel that a manifest can state, for modules whose fuel is to be found out. */
export const FUEL_UNKNOWN = { fuelPerToken: 2 ** 20 } as const;

type Shape<Vector> = Omit<Vector, 'sha256' | 'fuel'>;

/** What a codec makes of a seed, in an instance of its own. module: instrumented. Throws 'bad-pack'. */
export function codecVectorOf(
  module: Uint8Array | CompiledModule,
  shape: Shape<CodecVector>,
  limits = FUEL_UNKNOWN as { readonly fuelPerToken: number },
): CodecVector {
  const { seed, tokens, dim, queries } = shape;
  const codec = PackInstance.open(module, limits);
  const page = codec.encode(drawn(seed, tokens * dim), tokens, dim);
  const encode = codec.fuelUsed;
  const decoded = codec.decode(page, tokens, dim);
  const decode = codec.fuelUsed;
  const dots = new Float32Array(queries * tokens);
  codec.dots(page, drawn(seed + 1, queries * dim), dots, tokens, dim, queries);
  const dotsFuel = codec.fuelUsed;
  const mixed = drawn(seed + 3, queries * dim);
  codec.mix(page, drawn(seed + 2, queries * tokens), mixed, tokens, dim, queries);
  const fuel = { encode, decode, dots: dotsFuel, mix: codec.fuelUsed };
  codec.close();
  const sha256 = { page: digestOf(page), decoded: digestOf(decoded), dots: digestOf(dots), mixed: digestOf(mixed) };
  return { seed, tokens, dim, queries, sha256, fuel };
}

/** The same of an element-wise kernel. */
export function kernelVectorOf(
  module: Uint8Array | CompiledModule,
  shape: Shape<KernelVector>,
  limits = FUEL_UNKNOWN as { readonly fuelPerToken: number },
): KernelVector {
  const { seed, tokens, dim, width } = shape;
  const kernel = PackKernel.open(module, limits);
  const x = drawn(seed, tokens * dim);
  kernel.apply(x, drawn(seed + 1, tokens * width), tokens, dim, width);
  const fuel = { apply: kernel.fuelUsed };
  kernel.close();
  return { seed, tokens, dim, width, sha256: { applied: digestOf(x) }, fuel };
}
