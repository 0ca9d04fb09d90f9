/** The measurements that come with the repository are read as a calibration reads them, checksum included. */
import { describe, expect, it } from 'vitest';
import { readMeasured } from '../../../engine/calibrate/measured.ts';
import { MEASURED } from '../../../lab/evaluate/passages.ts';

describe('the measurements behind the law of SmolLM2', () => {
  it('can be read, so that the law can be fitted again and with kinds left out', () => {
    const { settings, windows } = readMeasured(MEASURED);
    expect(windows.map(({ text }) => text)).toEqual(expect.arrayContaining(['wiki', 'novel', 'german', 'code']));
    expect(settings.layers).toBe(30);
  });
});
