/**
 * The dense half on onnxruntime-node: one session per graph of dense-graphs.ts, one run per layer and step.
 * A run blocks the thread it is called on, so the decode loop lives in a worker. The package is optional, and is loaded
 * when a backend is created.
 */
import type { InferenceSession, Tensor } from 'onnxruntime-node';
import { assert, KvError } from '../../native/index.ts';
import { DenseBase, type DenseModel, opened } from './dense.ts';
import type { DenseGraph, GraphInput } from './dense-graphs.ts';
import { firstGraph, lastGraph, logitsGraph, nextGraph, withoutGraphs } from './dense-graphs.ts';
import { writeOnnxModel } from './onnx-writer.ts';
import type { DenseBackend, DenseOptions, LayerInput } from './types.ts';

export type Ort = typeof import('onnxruntime-node');

export async function importOrt(): Promise<Ort> {
  return import('onnxruntime-node');
}

/**
 * Builds the sessions of a model. `model.weights` stays in use afterwards (embedding rows, output sketches) and must
 * be closed after the backend. Throws KvError 'missing-dependency' without onnxruntime-node, 'bad-model' for tensors
 * that are missing or misshapen, 'bad-argument' for options, 'unsupported' for what graphs lack.
 */
export async function createOrtBackend(
  model: DenseModel,
  options: DenseOptions,
  load: () => Promise<Ort> = importOrt,
): Promise<DenseBackend> {
  const lacking = withoutGraphs(model.config);
  if (lacking !== null)
    throw new KvError('unsupported', `the graphs for onnxruntime do not serve models with ${lacking}`, {
      values: { architecture: model.config.architecture },
      hint: 'take the native half, as --dense auto does for such a model, or loops in float32, as --dense exact does',
    });
  const ort = await load().catch((cause: unknown) => {
    throw new KvError(
      'missing-dependency',
      'onnxruntime-node cannot be loaded, and this dense half of the model runs on it',
      { hint: 'npm install onnxruntime-node --ignore-scripts', cause },
    );
  });
  return opened(new OrtBackend(ort, model, options));
}

function sessionOptions(threads: number): InferenceSession.SessionOptions {
  return {
    executionProviders: ['cpu'],
    executionMode: 'sequential',
    intraOpNumThreads: threads,
    interOpNumThreads: 1,
    // Otherwise each session keeps its own arena, which took 85 MB more after one chunk of 128 tokens and was no
    // faster.
    enableCpuMemArena: false,
    enableMemPattern: false,
    logSeverityLevel: 3,
    // Idle threads must sleep, or they take the cores from attention, which runs between two runs of ours.
    extra: { session: { intra_op: { allow_spinning: '0' } } },
  };
}

class OrtBackend extends DenseBase implements DenseBackend {
  readonly name = 'onnxruntime';
  readonly isRowwise = false;
  private readonly ort: Ort;
  private readonly given: GraphInput;
  private readonly threads: number;
  /** first, next 0 … next L−2, last, logits. */
  private readonly sessions: InferenceSession[] = [];

  constructor(ort: Ort, model: DenseModel, options: DenseOptions) {
    super(model, options);
    this.ort = ort;
    this.threads = options.threads;
    this.given = { config: model.config, weights: model.weights, precision: options.precision };
  }

  /** Goes graph by graph, so that only one layer's weights exist twice at any time. */
  async open(): Promise<void> {
    const { layers } = this.given.config;
    await this.addSession(firstGraph(this.given));
    for (let layer = 0; layer < layers - 1; layer++) {
      await this.addSession(nextGraph(this.given, layer));
      this.onLayer(layer + 1);
    }
    await this.addSession(lastGraph(this.given));
    this.onLayer(layers);
    await this.addSession(logitsGraph(this.given));
  }

  private async addSession(graph: DenseGraph): Promise<void> {
    this.safePoint();
    this.sessions.push(await this.ort.InferenceSession.create(writeOnnxModel(graph), sessionOptions(this.threads)));
    this.bytes += graph.bytes;
    for (const [type, count] of Object.entries(graph.matrices)) this.countMatrices(type, count);
  }

  async first(x: Float32Array, tokens: number): Promise<LayerInput> {
    const results = await this.run(0, { x: this.matrix(x, tokens, this.given.config.hiddenSize, 'x') });
    return layerInput(0, tokens, results, x);
  }

  async next(layer: number, attention: Float32Array, x: Float32Array, tokens: number): Promise<LayerInput> {
    const { layers } = this.given.config;
    assert(layer >= 0 && layer < layers - 1, `next(${layer}) of a model of ${layers} layers`);
    const results = await this.run(layer + 1, this.afterAttention(attention, x, tokens));
    return layerInput(layer + 1, tokens, results, floats(results, 'x.next'));
  }

  async last(attention: Float32Array, x: Float32Array, tokens: number): Promise<Float32Array> {
    const results = await this.run(this.given.config.layers, this.afterAttention(attention, x, tokens));
    return floats(results, 'x.next');
  }

  async logits(x: Float32Array, rows: number): Promise<Float32Array> {
    const { hiddenSize, layers } = this.given.config;
    return floats(await this.run(layers + 1, { x: this.matrix(x, rows, hiddenSize, 'x') }), 'logits');
  }

  async close(): Promise<void> {
    this.closed = true;
    for (const session of this.sessions.splice(0)) await session.release();
  }

  private afterAttention(attention: Float32Array, x: Float32Array, tokens: number): Record<string, Tensor> {
    const { queryHeads, headDim, hiddenSize } = this.given.config;
    return {
      attention: this.matrix(attention, tokens, queryHeads * headDim, 'attention'),
      x: this.matrix(x, tokens, hiddenSize, 'x'),
    };
  }

  private matrix(data: Float32Array, rows: number, columns: number, name: string): Tensor {
    this.checkRows(data, rows, columns, name);
    return new this.ort.Tensor('float32', data, [rows, columns]);
  }

  /** Outputs are fresh buffers: measured, prepared ones gain nothing, and x would alias its own input. */
  private async run(index: number, feeds: Record<string, Tensor>): Promise<InferenceSession.ReturnType> {
    this.checkOpen();
    this.safePoint();
    return this.sessions[index]!.run(feeds);
  }
}

function floats(results: InferenceSession.ReturnType, name: string): Float32Array {
  const data = results[name]?.data;
  assert(data instanceof Float32Array, `output ${name} is not float32`);
  return data;
}

function layerInput(layer: number, tokens: number, results: InferenceSession.ReturnType, x: Float32Array): LayerInput {
  return { layer, tokens, q: floats(results, 'q'), k: floats(results, 'k'), v: floats(results, 'v'), x };
}
