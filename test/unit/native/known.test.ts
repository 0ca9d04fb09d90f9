// Is a misspelt name refused with the one that was meant, and a strange one with all there are? Small words, compared
// by hand.
import { describe, expect, it } from 'vitest';
import { checkKeys, KvError, nearestName } from '../../../native/index.ts';

const KNOWN = ['kvBudget', 'kldBudget', 'topP', 'stop', 'maxTokens', 'kv-cache-dtype-skip-layers'];

describe('nearestName', () => {
  it.each([
    ['kvBugdt', 'kvBudget'], // a swap and a letter left out
    ['KV_BUDGET', 'kvBudget'],
    ['kv-bugdet', 'kvBudget'],
    ['topK', 'topP'],
    ['max_token', 'maxTokens'],
    ['kvCacheDtypeSkipLayer', 'kv-cache-dtype-skip-layers'],
    ['banana', null],
    ['', null],
    ['x', null],
  ])('%s: %s', (given, meant) => {
    expect(nearestName(given, KNOWN)).toBe(meant);
  });
});

describe('checkKeys', () => {
  const check = (options: unknown) => (): void =>
    checkKeys(options as { kvBudget?: string }, { kvBudget: true }, 'open');
  const errorOf = (work: () => void): KvError => {
    try {
      work();
    } catch (error) {
      return error as KvError;
    }
    throw new Error('nothing was refused');
  };
  it('takes what is known, and nothing but an object', () => {
    expect(check({})).not.toThrow();
    expect(check({ kvBudget: undefined })).not.toThrow();
    for (const options of [null, undefined, 7, 'price', [], [1]]) {
      expect(errorOf(check(options))).toBeInstanceOf(KvError);
      expect(errorOf(check(options)).code).toBe('bad-argument');
    }
  });
  it('names the option, and the one that was meant or else all of them', () => {
    expect(errorOf(check({ kvBugdet: '1MiB' }))).toMatchObject({
      code: 'bad-argument',
      message: "open has no option 'kvBugdet'",
      hint: 'did you mean kvBudget?',
    });
    expect(errorOf(check({ banana: 1 })).hint).toBe('the known names are kvBudget');
    expect(errorOf(check(JSON.parse('{ "__proto__": 1 }'))).code).toBe('bad-argument');
    expect(errorOf(check({ toString: 1 })).code).toBe('bad-argument');
  });
});
