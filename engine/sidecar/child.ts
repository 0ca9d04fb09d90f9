/**
 * The program of a helper: it takes a model as bytes, answers questions one after the other, and ends when its input
 * does, which it does at the latest when the engine is gone. It is started by helper-process.ts with two arguments, the
 * file of onnxruntime-node and the longest message, and writes to descriptor 3, since libraries may print to 1 and 2.
 */
import { writeSync } from 'node:fs';
import { createRequire } from 'node:module';
import type { InferenceSession } from 'onnxruntime-node';
import { FrameReader, framed, type Message, type SentTensor, TENSOR_BYTES, type TensorType } from './frames.ts';

type Ort = typeof import('onnxruntime-node');

const ANSWERS = 3;
const VIEWS = { float32: Float32Array, int32: Int32Array, int64: BigInt64Array, uint8: Uint8Array } as const;

function send(message: Message): void {
  const bytes = framed(message);
  let at = 0;
  while (at < bytes.byteLength) at += writeSync(ANSWERS, bytes, at);
}

class Program {
  readonly #ort: Ort;
  #session: InferenceSession | null = null;

  constructor(ort: Ort) {
    this.#ort = ort;
  }

  /** Answers a message; what goes wrong is an answer too. */
  async take({ id, tensors }: Message): Promise<void> {
    try {
      send({ id, tensors: id === 0 ? await this.#load(tensors[0]!) : await this.#run(tensors) });
    } catch (error) {
      send({ id, trouble: error instanceof Error ? error.message : String(error), tensors: [] });
    }
  }

  async #load({ data }: SentTensor): Promise<SentTensor[]> {
    this.#session = await this.#ort.InferenceSession.create(data, {
      executionProviders: ['cpu'],
      executionMode: 'sequential',
      intraOpNumThreads: 1,
      interOpNumThreads: 1,
      enableCpuMemArena: false,
      enableMemPattern: false,
      logSeverityLevel: 4,
    });
    return [];
  }

  async #run(tensors: readonly SentTensor[]): Promise<SentTensor[]> {
    const feeds: Record<string, InstanceType<Ort['Tensor']>> = {};
    for (const { name, type, dims, data } of tensors) {
      const elements = new VIEWS[type](
        data.buffer as ArrayBuffer,
        data.byteOffset,
        data.byteLength / TENSOR_BYTES[type],
      );
      feeds[name] = new this.#ort.Tensor(type, elements as Float32Array, dims);
    }
    const results = await this.#session!.run(feeds);
    return Object.entries(results).map(([name, tensor]): SentTensor => {
      const { type, dims, data } = tensor as { type: string; dims: readonly number[]; data: Float32Array };
      if (!(type in TENSOR_BYTES)) throw new Error(`the answer ${name} is of the type ${type}, which is not sent`);
      const bytes = new Uint8Array(data.buffer, data.byteOffset, data.byteLength);
      return { name, type: type as TensorType, dims, data: bytes };
    });
  }
}

const [ortFile, bytesMax] = process.argv.slice(2);
const program = new Program(createRequire(import.meta.url)(ortFile!) as Ort);
const reader = new FrameReader(Number(bytesMax));
let last: Promise<void> = Promise.resolve();
process.stdin.on('data', (chunk: Buffer) => {
  for (const message of reader.push(chunk)) last = last.then(() => program.take(message));
});
// Whoever asked is gone, and so is the one who would read an answer.
process.stdin.on('end', () => process.exit(0));
