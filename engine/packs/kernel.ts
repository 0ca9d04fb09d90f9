/** A pack that is an element-wise kernel, opened for one session. */
import { KvError } from '../../native/index.ts';
import { checkLength, checkPackShape, compileModule, FUEL_DIM, type PackLimits } from './instance.ts';
import type { CompiledModule } from './machine.ts';
import { CALL_FUEL, Sandbox } from './sandbox.ts';

/** Parameters of a token, the most. */
const WIDTH_MAX = 4096;

export class PackKernel {
  readonly #sandbox: Sandbox;
  readonly #limits: PackLimits;

  private constructor(sandbox: Sandbox, limits: PackLimits) {
    this.#sandbox = sandbox;
    this.#limits = limits;
  }

  /** module: instrumented, as bytes or compiled. Throws 'bad-pack'. */
  static open(module: Uint8Array | CompiledModule, limits: PackLimits): PackKernel {
    return new PackKernel(new Sandbox(module instanceof Uint8Array ? compileModule(module) : module), limits);
  }

  /** Fuel that the last call used. */
  get fuelUsed(): number {
    return this.#sandbox.fuelUsed;
  }

  /** True once it was closed or broke its contract. */
  get isOver(): boolean {
    return this.#sandbox.isOver;
  }

  /**
   * Changes x: [tokens, dim] in place. parameters: [tokens, width], a row for each token: for `rope` the cosines of its
   * angles, then the sines. Throws 'bad-pack', 'bad-shape', 'closed'; then x is as it was.
   */
  apply(x: Float32Array, parameters: Float32Array, tokens: number, dim: number, width: number): void {
    checkPackShape({ tokens, dim });
    if (!(Number.isInteger(width) && width >= 0 && width <= WIDTH_MAX))
      throw new KvError('bad-shape', `a kernel has 0 to ${WIDTH_MAX} parameters for a token`, { values: { width } });
    checkLength('x', x, tokens * dim);
    checkLength('parameters', parameters, tokens * width);
    const areas = [
      { bytes: x.byteLength, given: x, isOutput: true },
      { bytes: parameters.byteLength, given: parameters },
    ];
    const fuel = this.#limits.fuelPerToken * tokens * Math.max(1, dim / FUEL_DIM) * 2 + CALL_FUEL;
    this.#sandbox.floats('pack_apply', this.#sandbox.call('pack_apply', areas, [tokens, dim, width], fuel), x);
  }

  close(): void {
    this.#sandbox.close();
  }
}
