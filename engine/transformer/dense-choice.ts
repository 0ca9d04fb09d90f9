/** Chooses the dense half of a model. onnxruntime is faster on some processors, but nothing depends on having it. */
import { nativeInfo } from '../../native/index.ts';
import type { DenseModel } from './dense.ts';
import { type GraphFeatures, withoutGraphs } from './dense-graphs.ts';
import { createLoopBackend } from './dense-loops.ts';
import { createNativeBackend } from './dense-native.ts';
import { createOrtBackend, importOrt, type Ort } from './dense-ort.ts';
import type { DenseBackend, DenseOptions } from './types.ts';

/**
 * Instruction sets on which our products are faster than those of onnxruntime, for one token and for a prompt. That
 * chooses its kernels by itself, so that on one machine only its best can be measured: SmolLM2 on a Zen 4, one thread,
 * CPU time of the dense half. With AVX-512 VNNI onnxruntime takes 14.7 ms for a token and 225 ms for 128, our AVX2
 * takes 4.0 and 233, our AVX-512 3.9 and 211, with VNNI 3.8 and 163. It is not faster on a machine that has AVX2 alone
 * than it is there. AVX-VNNI follows from AVX2.
 */
const FASTER: ReadonlySet<string> = new Set(['avx2', 'avx2vnni', 'avx512vnni']);

export interface DenseChoice {
  readonly name: 'native' | 'onnxruntime' | 'loops';
  /** The reason for the choice, in words. */
  readonly why: string;
  /** True if another would be faster and is not installed. */
  readonly isSecondBest: boolean;
}

/**
 * Never fails: without onnxruntime, loops can do everything. config: of the model that it is for. onnxruntime's graphs
 * have no place for what `adapters` add.
 */
export async function chooseDense(
  precision: DenseOptions['precision'],
  load: () => Promise<Ort> = importOrt,
  config: Partial<GraphFeatures> = {},
  adapters = false,
): Promise<DenseChoice> {
  const { isa, binding } = nativeInfo();
  const kernels = binding === 'wasm' ? 'WebAssembly' : isa;
  if (precision === 'auto' && FASTER.has(isa))
    return { name: 'native', why: `written for ${kernels}`, isSecondBest: false };
  const own = withoutGraphs(config) ?? (adapters ? 'adapters' : null);
  if (own !== null)
    return precision === 'auto'
      ? { name: 'native', why: `portable loops for ${kernels}, which have ${own}`, isSecondBest: false }
      : { name: 'loops', why: `float32 with ${own} in plain JavaScript, many times as slow`, isSecondBest: false };
  try {
    await load();
  } catch {
    if (precision === 'exact')
      return {
        name: 'loops',
        why: 'float32 in plain JavaScript; onnxruntime-node would be many times as fast but is not installed',
        isSecondBest: true,
      };
    return {
      name: 'native',
      why: `portable loops for ${kernels}; onnxruntime-node would be faster here but is not installed`,
      isSecondBest: true,
    };
  }
  const why = precision === 'auto' ? `faster than our kernels for ${kernels}` : 'float32';
  return { name: 'onnxruntime', why, isSecondBest: false };
}

/** Builds the dense half that chooseDense names. Throws what their constructors throw. */
export async function openDense(
  model: DenseModel,
  options: DenseOptions,
  load: () => Promise<Ort> = importOrt,
): Promise<{ readonly dense: DenseBackend; readonly choice: DenseChoice }> {
  const choice = await chooseDense(options.precision, load, model.config, options.adapters === true);
  const create = { native: createNativeBackend, onnxruntime: createOrtBackend, loops: createLoopBackend }[choice.name];
  return { dense: await create(model, options, load), choice };
}
