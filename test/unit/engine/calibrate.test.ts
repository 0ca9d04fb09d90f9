// A calibration of the reference model: it measures what it says, goes on where it was stopped and ends with the same
// bytes, refuses measurements that are not its own, and the fit finds the numbers that synthetic measurements were made
// from.

import { mkdtempSync, readFileSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { type CalibrationRequest, calibrate, isComplete, LATER_TOKENS } from '../../../engine/calibrate/calibrate.ts';
import { lawOf, thresholdsOf } from '../../../engine/calibrate/fit.ts';
import { type Measured, type MeasuredWindow, readMeasured, writeMeasured } from '../../../engine/calibrate/measured.ts';
import { sensitivities, sensitivityPlot } from '../../../engine/calibrate/sensitivity.ts';
import { Runtime } from '../../../engine/transformer/runtime/runtime.ts';
import { KvError } from '../../../native/index.ts';
import { checkThresholds } from '../../../policy/index.ts';
import { refused } from '../../refusal.ts';
import { MODEL } from './on-reference.ts';

const dir = mkdtempSync(join(tmpdir(), 'palimpsest-calibrate-'));
const story = readFileSync(join(import.meta.dirname, '../../../models/text/chronicle.txt'), 'utf8');
const WHOLE = join(dir, 'whole.measured');
let runtime: Runtime;
let whole: Measured;

const requestOf = (path: string, changes: Partial<CalibrationRequest> = {}): CalibrationRequest => ({
  texts: [
    { name: 'one', content: story.slice(0, 12_000) },
    { name: 'two', content: story.slice(12_000, 24_000) },
  ],
  tokens: LATER_TOKENS + 6 * 128,
  windows: 1,
  path,
  ...changes,
});

beforeAll(async () => {
  runtime = await Runtime.open({ model: MODEL, threads: 1 });
  whole = await calibrate(runtime, requestOf(WHOLE));
});
afterAll(() => runtime.close());

describe('a calibration', () => {
  it('measures every layer, side and format of every window, and lower formats diverge more', () => {
    expect(whole.windows.map(({ text, pages }) => [text, pages])).toEqual([
      ['one', 5],
      ['two', 5],
    ]);
    expect(whole.windows.every(isComplete)).toBe(true);
    for (const { k, v } of whole.windows) {
      for (const side of [k, v]) {
        const [higher, lower] = Object.values(side.probed).map(({ kld }) => kld.reduce((sum, one) => sum! + one!, 0)!);
        expect(higher).toBeGreaterThan(0);
        expect(lower).toBeGreaterThan(higher!);
      }
    }
  });

  it('gives a law that a session accepts, and of one text predicts what another one measured', () => {
    const law = lawOf({ ...whole, windows: whole.windows.slice(0, 1) });
    checkThresholds(thresholdsOf(law), 6);
    const other = whole.windows[1]!;
    for (const side of ['k', 'v'] as const) {
      for (const { energy, kld } of Object.values(other[side].probed)) {
        const predicted = energy.reduce((sum, one, layer) => sum! + one! * law.coefficient[side][layer]!.value, 0)!;
        const measured = kld.reduce((sum, one) => sum! + one!, 0)!;
        expect(predicted / measured).toBeGreaterThan(0.3);
        expect(predicted / measured).toBeLessThan(3);
      }
    }
  });

  it('that was stopped goes on where it was, and ends with the same bytes', async () => {
    const path = join(dir, 'stopped.measured');
    const abort = new AbortController();
    const seen: number[] = [];
    const stopAt = (_: MeasuredWindow, done: number): void => {
      seen.push(done);
      if (done === 7 || done === 31) abort.abort();
    };
    const stopped = calibrate(runtime, requestOf(path, { signal: abort.signal, onProgress: stopAt }));
    expect((await refused(stopped)).code).toBe('aborted');
    expect(readMeasured(path).windows.map(isComplete)).toEqual([false]);
    await calibrate(runtime, requestOf(path, { onProgress: (_, done) => seen.push(done) }));
    // Of each window four probes a layer, one of each of 43 matrices, and one of all that it would choose.
    expect(seen).toEqual(Array.from({ length: 2 * (24 + 44) }, (_, i) => i + 1));
    expect(readFileSync(path)).toEqual(readFileSync(WHOLE));
    // All is known now, so nothing is measured.
    await calibrate(runtime, requestOf(path, { onProgress: () => expect.fail('measured again') }));
  });

  it('keeps no text and no token ids', () => {
    const bytes = readFileSync(WHOLE, 'utf8');
    const words = [...new Set(story.slice(0, 24_000).match(/\w{4,} \w{4,}/g))];
    expect(words.length).toBeGreaterThan(100);
    expect(words.filter((word) => bytes.includes(word))).toEqual([]);
    const [first] = runtime.model.tokenizer.encode(story).slice(100).map(String);
    expect(first).toMatch(/^\d+$/);
    expect(Object.keys(whole.windows[0]!).sort()).toEqual(['activations', 'ages', 'digest', 'k', 'pages', 'text', 'v']);
  });

  it('refuses texts and windows that are too short or too long before it measures', async () => {
    const path = join(dir, 'none.measured');
    const codes: string[] = [];
    for (const changes of [
      { tokens: 512 },
      { tokens: 2 ** 20 },
      { windows: 40 },
      { texts: [{ name: 'x', content: 'short' }] },
    ])
      codes.push((await refused(calibrate(runtime, requestOf(path, changes)))).code);
    expect(codes).toEqual(['bad-argument', 'context-too-long', 'bad-argument', 'bad-argument']);
    expect(() => readMeasured(path)).toThrow(KvError);
  });
});

describe('a file of measurements', () => {
  const codeAt = (bytes: Uint8Array): string => {
    const path = join(dir, 'hostile.measured');
    writeFileSync(path, bytes);
    try {
      readMeasured(path);
      return 'read';
    } catch (error) {
      expect(error).toBeInstanceOf(KvError);
      return (error as KvError).code;
    }
  };

  it('is refused wherever it ends and wherever one of its bytes is another', () => {
    const bytes = readFileSync(WHOLE);
    // The last byte is a line feed, which says nothing.
    for (let at = 0; at < bytes.length - 1; at += 97) {
      expect(codeAt(bytes.subarray(0, at)), `${at} bytes`).toBe('bad-file');
      const changed = Buffer.from(bytes);
      changed[at]! ^= 1;
      expect(['bad-file', 'checksum-mismatch'], `byte ${at}`).toContain(codeAt(changed));
    }
    expect(codeAt(bytes)).toBe('read');
  });

  it('is refused if its lists are not of its layers, even if its checksum fits', () => {
    const path = join(dir, 'short-lists.measured');
    writeMeasured(path, { ...whole, settings: { ...whole.settings, layers: 7 } });
    expect(() => readMeasured(path)).toThrow(/not of 7 layers/);
  });

  it('of another model or other settings is refused, and stays as it is', async () => {
    for (const change of [{ modelDigest: 'another' }, { later: 128 }, { formats: { k: ['rot2'], v: ['rot2'] } }]) {
      const path = join(dir, 'foreign.measured');
      writeMeasured(path, { windows: [], settings: { ...whole.settings, ...change } });
      const before = readFileSync(path);
      expect((await refused(calibrate(runtime, requestOf(path)))).code).toBe('model-mismatch');
      expect(readFileSync(path)).toEqual(before);
    }
  });
});

describe('the fit', () => {
  const LAYERS = 4;
  const coefficient = { k: [0.5, 1, 2, 4], v: [1, 1, 3, 0.2] };

  /** A window whose text costs `text` times as much; errors fade with 0.8·age^−0.6. */
  function windowOf(text: number, noise: (layer: number) => number = () => 1): MeasuredWindow {
    const side = (name: 'k' | 'v'): MeasuredWindow['k'] => {
      const energy = [0.01, 0.02, 0.005, 0.04];
      const kld = energy.map((e, layer) => e * coefficient[name][layer]! * text * noise(layer));
      return {
        first: { rot2: { ln: [-3, -2, -1, null], sd: [0.1, 0.2, 0.3, null] } },
        probed: { rot2: { energy, kld } },
      };
    };
    const ages = [2, 3, 4, 8].map((age) => ({ age, first: 1, now: (0.8 * age ** -0.6) ** 2 }));
    return { text: 'x', digest: '0'.repeat(64), pages: 4, k: side('k'), v: side('v'), ages };
  }
  const settings = { layers: LAYERS } as Measured['settings'];

  it('finds coefficients, fading and the table that windows were made from', () => {
    const law = lawOf({ settings, windows: [windowOf(0.5), windowOf(2)] });
    for (const side of ['k', 'v'] as const) {
      expect(law.coefficient[side].map(({ samples }) => samples)).toEqual([2, 2, 2, 2]);
      for (const [layer, { value }] of law.coefficient[side].entries())
        expect(value).toBeCloseTo(coefficient[side][layer]!, 3);
    }
    expect(law.offset.value).toBeCloseTo(0.8, 4);
    expect(law.fade.value).toBeCloseTo(0.6, 4);
    expect(law.epsilon.k[1]!.rot2).toEqual({ value: Number(Math.exp(-2).toPrecision(5)), sd: 0.2, samples: 2 });
    expect(law.epsilon.k[3]).toEqual({});
    // ln 2 either way, and an assumed half of a unit beside it.
    expect(law.text.sd).toBeCloseTo(Math.sqrt((2 * Math.LN2 ** 2 + 0.5 ** 2) / 2), 4);
    expect(law.text.value).toBe(1);
  });

  it('is surer of layers that texts agree on, and with more of them', () => {
    const agree = lawOf({ settings, windows: [1, 2, 1, 2].map((text) => windowOf(text)) });
    const differ = lawOf({
      settings,
      windows: [3, 0.3, 3, 0.3].map((x) => windowOf(1, (layer) => (layer === 1 ? x : 1))),
    });
    const few = lawOf({ settings, windows: [windowOf(1)] });
    expect(differ.coefficient.k[1]!.sd).toBeGreaterThan(agree.coefficient.k[1]!.sd);
    expect(few.coefficient.k[1]!.sd).toBeGreaterThan(agree.coefficient.k[1]!.sd);
    expect(few.coefficient.k[1]!.sd).toBeGreaterThan(0.5);
  });

  it('of nothing is what is assumed, and a session accepts it', () => {
    const law = lawOf({ settings, windows: [] });
    checkThresholds(thresholdsOf(law), LAYERS);
    expect(law.coefficient.k.map(({ value, samples }) => [value, samples])).toEqual(Array(LAYERS).fill([1, 0]));
    expect([law.offset.samples, law.fade.value]).toEqual([0, 0.5]);
  });

  it('is shown with one line per layer, in which marks to the right cost more', () => {
    const rows = sensitivities(whole, lawOf(whole));
    const lines = sensitivityPlot(whole.settings.formats, rows).split('\n');
    expect(lines).toHaveLength(6 + 2);
    for (const line of lines.slice(1, -1)) {
      const keys = line.slice(6, 38);
      expect(keys).toMatch(/^[·23]+$/);
      expect(keys.indexOf('2')).toBeGreaterThanOrEqual(keys.indexOf('3'));
    }
  });
});
