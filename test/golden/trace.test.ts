// A trace of the first version still opens, holds the rows that were put into it, and is written today byte for byte as
// it was then.
import { mkdtempSync, readFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { sampledRows, type TraceHeader } from '../../engine/trace/header.ts';
import { Trace } from '../../engine/trace/reader.ts';
import { TraceWriter } from '../../engine/trace/writer.ts';
import { PAGE_TOKENS } from '../../native/index.ts';

const GOLDEN = join(import.meta.dirname, 'trace-v1.trace');
const header: TraceHeader = {
  kind: 'palimpsest-trace',
  version: 1,
  model: { name: 'golden', digest: '00' },
  shape: { layers: 3, queryHeads: 4, kvHeads: 2, headDim: 8 },
  rotary: { radians: [1, 0.1, 0.01], interleaved: false },
  slidingWindow: [null, 64, null],
  tokens: 150,
  sampling: { layers: [1], heads: [1], queriesPerPage: 20, seed: 7 },
};
const measured = [{ cache: 'q8', scored: 64, meanKld: 0.25, predictedKld: 0, kvBytes: 1000, kvBytesF16: 2000 }];

/** Whole numbers that halves hold exactly. */
const numbers = (count: number, from: number): Float32Array =>
  Float32Array.from({ length: count }, (_, at) => ((at * 7 + from) % 401) - 200);

function write(path: string): void {
  const writer = new TraceWriter(path, header, [0, 1, 2].map((layer) => numbers(32 * 32, layer)));
  for (const [position, tokens] of [
    [0, PAGE_TOKENS],
    [PAGE_TOKENS, 22],
  ] as const)
    for (let layer = 0; layer < 3; layer++)
      writer.add({
        layer,
        position,
        tokens,
        q: numbers(tokens * 32, position + layer),
        k: numbers(tokens * 16, position + layer + 1),
        v: numbers(tokens * 16, position + layer + 2),
        x: Float32Array.from({ length: tokens * 4 }, (_, at) => (at % 4 === 0 ? 1 + Math.floor(at / 4) : 0)),
      });
  writer.finish(measured);
}

test('a trace of version 1 holds what was put into it', () => {
  const trace = Trace.open(GOLDEN);
  try {
    expect(trace.header).toEqual(header);
    expect(trace.measured).toEqual(measured);
    expect(trace.shape).toEqual({ layers: 1, queryHeads: 2, kvHeads: 1, headDim: 8 });
    expect(trace.pages).toBe(2);
    const { tokens, k, queryRows, q, norms } = trace.page(1, 0);
    expect(tokens).toBe(22);
    // Head 1 of layer 1: channels 8 to 15 of 16.
    const all = numbers(22 * 16, PAGE_TOKENS + 2);
    expect([...k.subarray(0, 16)]).toEqual([...all.subarray(8, 16), ...all.subarray(24, 32)]);
    expect(queryRows).toEqual(sampledRows(1, header.sampling).filter((row) => row < 22));
    expect([...norms]).toEqual(queryRows.map((row) => 1 + row));
    const asked = numbers(22 * 32, PAGE_TOKENS + 1);
    expect([...q.subarray(0, 16)]).toEqual([...asked.subarray(queryRows[0]! * 32 + 16, queryRows[0]! * 32 + 32)]);
    const sketch = numbers(32 * 32, 1);
    for (const [at, value] of trace.sketch(0).entries())
      expect(Math.abs(value - sketch[Math.floor(at / 16) * 32 + 16 + (at % 16)]!)).toBeLessThanOrEqual(200 / 2048);
  } finally {
    trace.close();
  }
});

test('and is written as it was', () => {
  const path = join(mkdtempSync(join(tmpdir(), 'palimpsest-golden-trace-')), 'again.trace');
  write(path);
  expect(readFileSync(path).equals(readFileSync(GOLDEN))).toBe(true);
});
