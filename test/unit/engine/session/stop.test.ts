// Stop strings must cut at the first occurrence, wherever the stream is split, and never swallow text that only looked
// like one. For many texts and splits the streamed result is compared with a search in the whole text.
import { describe, expect, it } from 'vitest';
import { StopText } from '../../../../engine/session/stop.ts';

function streamed(text: string, stops: readonly string[], sizes: readonly number[]): { out: string; hit: boolean } {
  const stop = new StopText(stops);
  let out = '';
  let at = 0;
  for (let i = 0; at < text.length; i++) {
    const size = sizes[i % sizes.length]!;
    out += stop.push(text.slice(at, at + size));
    at += size;
  }
  return { out: out + stop.end(), hit: stop.hit };
}

function whole(text: string, stops: readonly string[]): { out: string; hit: boolean } {
  const found = stops
    .filter((s) => s !== '')
    .map((s) => text.indexOf(s))
    .filter((i) => i >= 0);
  return found.length === 0 ? { out: text, hit: false } : { out: text.slice(0, Math.min(...found)), hit: true };
}

describe('stop strings', () => {
  const texts = ['', 'abc', 'one\n\ntwo', 'aaab', 'END', 'xENxEND tail', 'a.b.c', '<|im', 'stop st sto stop'];
  const stops = [[], ['END'], ['\n\n'], ['aab', 'ab'], ['.'], ['<|im_end|>'], ['stop', 'sto'], ['']];
  it('cut where a search in the whole text cuts, for every split', () => {
    for (const text of texts)
      for (const set of stops)
        for (const sizes of [[1], [2], [3], [1, 4], [100]])
          expect(streamed(text, set, sizes), JSON.stringify([text, set, sizes])).toEqual(whole(text, set));
  });
  it('say nothing after a hit', () => {
    const stop = new StopText(['.']);
    expect(stop.push('a.b')).toBe('a');
    expect(stop.push('more')).toBe('');
    expect(stop.end()).toBe('');
  });
});
