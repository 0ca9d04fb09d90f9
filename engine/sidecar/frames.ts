/**
 * Messages between a helper and its engine, on a pipe: four bytes of length, four of the length of a head, the head as
 * JSON, and the bytes of tensors one after the other. It imports nothing, so that a helper reads little of the package.
 */

/** Types of elements that tensors may have here, with their bytes. */
export const TENSOR_BYTES = { float32: 4, int32: 4, int64: 8, uint8: 1 } as const;
export type TensorType = keyof typeof TENSOR_BYTES;

/** A tensor on its way. */
export interface SentTensor {
  readonly name: string;
  readonly type: TensorType;
  readonly dims: readonly number[];
  /** Little-endian elements, row-major. */
  readonly data: Uint8Array;
}

/** What a message is about. 0 is the model itself; every other number is a question, and its answer has the same. */
export interface Message {
  readonly id: number;
  /** Why there is no answer. */
  readonly trouble?: string;
  readonly tensors: readonly SentTensor[];
}

const HEAD_BYTES = 8;

/** → bytes to write: in one piece, so that one call writes them and one read has them */
export function framed({ id, trouble, tensors }: Message): Uint8Array {
  const described = tensors.map(({ name, type, dims }) => ({ name, type, dims }));
  const head = new TextEncoder().encode(JSON.stringify({ id, trouble, tensors: described }));
  const bytes = tensors.reduce((sum, { data }) => sum + data.byteLength, head.byteLength);
  const whole = new Uint8Array(HEAD_BYTES + bytes);
  const view = new DataView(whole.buffer);
  view.setUint32(0, bytes, true);
  view.setUint32(4, head.byteLength, true);
  let at = HEAD_BYTES;
  for (const part of [head, ...tensors.map(({ data }) => data)]) {
    whole.set(part, at);
    at += part.byteLength;
  }
  return whole;
}

/** Puts messages together again from whatever pieces a pipe gives. Throws a RangeError for what is no message. */
export class FrameReader {
  readonly #bytesMax: number;
  #chunks: Uint8Array[] = [];
  #bytes = 0;

  /** bytesMax: longest message that is read. */
  constructor(bytesMax: number) {
    this.#bytesMax = bytesMax;
  }

  /** → the messages that are whole now */
  *push(chunk: Uint8Array): Generator<Message, void, undefined> {
    this.#chunks.push(chunk);
    this.#bytes += chunk.byteLength;
    while (this.#bytes >= HEAD_BYTES) {
      const start = this.#peek(HEAD_BYTES);
      const view = new DataView(start.buffer, start.byteOffset, HEAD_BYTES);
      const [bytes, headBytes] = [view.getUint32(0, true), view.getUint32(4, true)];
      if (bytes > this.#bytesMax || headBytes > bytes)
        throw new RangeError(`a message of ${bytes} bytes with a head of ${headBytes}, at most ${this.#bytesMax}`);
      if (this.#bytes < HEAD_BYTES + bytes) return;
      const whole = this.#peek(HEAD_BYTES + bytes);
      this.#chunks = [whole.subarray(HEAD_BYTES + bytes)];
      this.#bytes = this.#chunks[0]!.byteLength;
      yield messageOf(whole.subarray(HEAD_BYTES, HEAD_BYTES + bytes), headBytes);
    }
  }

  /** The first bytes of what is here, and in one piece. */
  #peek(bytes: number): Uint8Array {
    if (this.#chunks[0]!.byteLength < bytes) {
      const joined = new Uint8Array(this.#bytes);
      let at = 0;
      for (const chunk of this.#chunks) {
        joined.set(chunk, at);
        at += chunk.byteLength;
      }
      this.#chunks = [joined];
    }
    return this.#chunks[0]!;
  }
}

function messageOf(bytes: Uint8Array, headBytes: number): Message {
  let head: Partial<Message>;
  try {
    head = JSON.parse(new TextDecoder().decode(bytes.subarray(0, headBytes))) as Partial<Message>;
  } catch {
    throw new RangeError('a message whose head is no JSON');
  }
  const { id, trouble, tensors } = head ?? {};
  if (!Number.isSafeInteger(id) || !Array.isArray(tensors)) throw new RangeError('a message without number or tensors');
  let at = headBytes;
  const read = tensors.map(({ name, type, dims }: SentTensor): SentTensor => {
    const each = Object.hasOwn(TENSOR_BYTES, type) ? TENSOR_BYTES[type] : 0;
    const isShape = Array.isArray(dims) && dims.every((dim) => Number.isSafeInteger(dim) && dim >= 0);
    const size = isShape ? dims.reduce((product, dim) => product * dim, each) : Number.NaN;
    if (typeof name !== 'string' || each === 0 || !(size <= bytes.byteLength - at))
      throw new RangeError('a message with a tensor that it does not hold');
    // A copy, since views of elements begin at multiples of their size.
    const data = bytes.slice(at, at + size);
    at += size;
    return { name, type, dims, data };
  });
  if (at !== bytes.byteLength) throw new RangeError('a message with bytes that belong to nothing');
  return { id: id!, ...(typeof trouble === 'string' ? { trouble } : {}), tensors: read };
}
