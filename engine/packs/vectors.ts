/**
 * Contract vectors: what a module makes of numbers that follow from a seed. They are sums of whole numbers, so they are
 * the same on every machine; so is what a module makes of them, and the fuel that it takes.
 */
import { createHash } from 'node:crypto';
import { PackInstance, type PackLimits } from './instance.ts';
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

type CodecShape = Shape<CodecVector>;
type KernelShape = Shape<KernelVector>;

/**
 * What a module makes of a seed, in an instance of its own: a codec where there are queries, else an element-wise
 * kernel. module: instrumented. Throws 'bad-pack'.
 */
export function vectorOf(module: Uint8Array | CompiledModule, shape: CodecShape, limits?: PackLimits): CodecVector;
export function vectorOf(module: Uint8Array | CompiledModule, shape: KernelShape, limits?: PackLimits): KernelVector;
export function vectorOf(
  module: Uint8Array | CompiledModule,
  shape: CodecShape | KernelShape,
  limits: PackLimits = FUEL_UNKNOWN,
): object {
  const sha256: Record<string, string> = {};
  const fuel: Record<string, number> = {};
  const noted = <Made extends Uint8Array | Float32Array>(call: string, name: string, made: Made): Made => {
    fuel[call] = instance.fuelUsed;
    sha256[name] = digestOf(made);
    return made;
  };
  const { seed, tokens, dim } = shape;
  const x = drawn(seed, tokens * dim);
  let instance: PackInstance | PackKernel;
  if ('queries' in shape) {
    const { queries } = shape;
    const codec = (instance = PackInstance.open(module, limits));
    const page = noted('encode', 'page', codec.encode(x, tokens, dim));
    noted('decode', 'decoded', codec.decode(page, tokens, dim));
    const [dots, mixed] = [new Float32Array(queries * tokens), drawn(seed + 3, queries * dim)];
    codec.dots(page, drawn(seed + 1, queries * dim), dots, tokens, dim, queries);
    noted('dots', 'dots', dots);
    codec.mix(page, drawn(seed + 2, queries * tokens), mixed, tokens, dim, queries);
    noted('mix', 'mixed', mixed);
  } else {
    const kernel = (instance = PackKernel.open(module, limits));
    kernel.apply(x, drawn(seed + 1, tokens * shape.width), tokens, dim, shape.width);
    noted('apply', 'applied', x);
  }
  instance.close();
  return { ...shape, sha256, fuel };
}
