/** Says in a few lines whether a model fits this machine, and which of the numbers are estimates. */
import { bytesText, plural } from '../../native/index.ts';
import type { Fit } from './machine-fit.ts';

/** Names and values for `fields`. */
export function fitRows(fit: Fit): [string, string][] {
  const { tokens, contextLength, cache, freeBytes, memoryBytes, weightsBytes, loadingBytes, scratchBytes, dense } = fit;
  const beyond = tokens > contextLength ? `, and the model is made for ${contextLength}` : '';
  const least = cache.pairs.reduce((a, b) => (b.bytes < a.bytes ? b : a));
  return [
    ['fits', verdict(fit)],
    ['free now', `${bytesText(freeBytes)} of ${bytesText(memoryBytes)}`],
    [
      'weights',
      `about ${bytesText(weightsBytes)} in memory (${dense}), and ${bytesText(loadingBytes)} more while they are loaded`,
    ],
    ['work', `about ${bytesText(scratchBytes)}; Node and the tokenizer come on top`],
    [
      'cache',
      `${bytesText(cache.f16Bytes)} in f16, ${bytesText(least.bytes)} in ${least.pair}, at ${plural(tokens, 'token')}${beyond}`,
    ],
  ];
}

/** What a person should know of a model's files. */
export const remarkRows = (remarks: readonly string[]): [string, string][] => remarks.map((remark) => ['note', remark]);

function verdict({ fits, unreadable, tokens, spareF16Bytes, spareLeastBytes }: Fit): string {
  if (unreadable.length > 0) return `no: weights of the type ${unreadable.join(', ')} are not read`;
  if (fits === 'yes')
    return `yes, also with an f16 cache of ${plural(tokens, 'token')}: ${bytesText(spareF16Bytes)} stay free`;
  if (fits === 'no')
    return `no: ${bytesText(-spareLeastBytes)} are missing, even with the smallest cache of ${plural(tokens, 'token')}`;
  return `with a budget for the cache: in f16 ${bytesText(-spareF16Bytes)} are missing at ${plural(tokens, 'token')}, with the smallest formats ${bytesText(spareLeastBytes)} stay free`;
}
