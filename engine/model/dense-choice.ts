/** Which dense half a model gets. onnxruntime is faster on some processors; it is never a condition for running. */
import { KvError, nativeInfo } from '../../native/index.ts';
import { checkDenseOptions } from './dense.ts';
import { createNativeBackend } from './dense-native.ts';
import { createOrtBackend, importOrt, type Ort } from './dense-ort.ts';
import type { DenseBackend, DenseOptions, LoadedModel } from './types.ts';

/** Instruction sets on which our products are faster than those of onnxruntime, for one token and for a prompt. */
const FASTER: ReadonlySet<string> = new Set(['avx512vnni']);

export interface DenseChoice {
  readonly name: 'native' | 'onnxruntime';
  /** For people: the reason for this one. */
  readonly why: string;
}

/** Throws KvError 'missing-dependency' where float32 is asked for and onnxruntime cannot be loaded. */
export async function chooseDense(
  precision: DenseOptions['precision'],
  load: () => Promise<Ort> = importOrt,
): Promise<DenseChoice> {
  const { isa, binding } = nativeInfo();
  const kernels = binding === 'wasm' ? 'WebAssembly' : isa;
  if (precision === 'auto' && FASTER.has(isa)) return { name: 'native', why: `written for ${kernels}` };
  try {
    await load();
  } catch (cause) {
    if (precision === 'auto')
      return {
        name: 'native',
        why: `portable loops for ${kernels}; onnxruntime-node would be faster here and is absent`,
      };
    throw new KvError('missing-dependency', 'a dense half in float32 needs onnxruntime-node, which cannot be loaded', {
      hint: "use dense: 'auto', which runs without it, or: npm install onnxruntime-node --ignore-scripts",
      cause,
    });
  }
  return { name: 'onnxruntime', why: precision === 'auto' ? `faster than our kernels for ${kernels}` : 'float32' };
}

/** Builds the dense half that chooseDense names. Throws what it and the two backends throw. */
export async function openDense(
  model: Pick<LoadedModel, 'config' | 'weights'>,
  options: DenseOptions,
  load: () => Promise<Ort> = importOrt,
): Promise<{ readonly dense: DenseBackend; readonly choice: DenseChoice }> {
  checkDenseOptions(options);
  const choice = await chooseDense(options.precision, load);
  const dense = choice.name === 'native' ? createNativeBackend(model, options) : createOrtBackend(model, options, load);
  return { dense: await dense, choice };
}
