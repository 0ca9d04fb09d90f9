/** What is said to people of a cache that grows without end, in notes and in reports. */
import { bytesText, plural } from '../native/index.ts';
import type { Growth } from '../policy/index.ts';

/** null: nothing was found. */
export function growthText(growth: Growth | null | undefined): string | null {
  if (growth == null) return null;
  const { tokens, bytes, bytesPerToken, limitBytes, tokensLeft } = growth;
  const pace = `${bytesText(bytes)} at ${plural(tokens, 'token')}, ${bytesText(Math.round(bytesPerToken))} more with each`;
  return `The cache grows without end: ${pace}. ${bytesText(limitBytes)} are reached in ${plural(tokensLeft, 'token')}, before the context is.`;
}
