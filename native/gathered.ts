/** The answer of a server, of which nobody knows the size before it has ended. */
import { KvError } from './error.ts';

/** The bytes of a body. Throws 'network' beyond `bytesMax`. */
export async function gathered(
  body: AsyncIterable<Uint8Array>,
  bytesMax: number,
  what: string,
): Promise<Uint8Array<ArrayBuffer>> {
  const chunks: Uint8Array[] = [];
  let bytes = 0;
  for await (const chunk of body) {
    bytes += chunk.length;
    if (bytes > bytesMax)
      throw new KvError('network', `${what} sends more than ${bytesMax} bytes`, { values: { bytesMax } });
    chunks.push(chunk);
  }
  const whole = new Uint8Array(bytes);
  let at = 0;
  for (const chunk of chunks) {
    whole.set(chunk, at);
    at += chunk.length;
  }
  return whole;
}
