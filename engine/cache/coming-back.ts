/**
 * What a layer gets back that is degraded, because its errors exceed what was promised: those of its page sides that
 * the policy wants most are made again of their originals, in a finer format, and so are keys and values of pages that
 * are held as latents, as far as there is room that nothing else takes now. What they take more, the next plans take
 * from pages of other layers.
 */
import { isFormatName, pageBytes, sidesOf } from '../../native/index.ts';
import type { FormChange, PageForm } from '../../policy/index.ts';
import type { OriginalsTerms } from '../originals/types.ts';
import type { Governed } from './governed.ts';
import { comesBackIn } from './promoted.ts';
import type { Terms } from './terms.ts';

/** Page sides that come back at one scheduling point at most: coding one once more takes as long as a move. */
const AT_ONCE = 16;

/** Terms with what a policy must know of originals to want sides back. */
export const comingBack = (terms: Terms, originals: OriginalsTerms | undefined): Terms =>
  originals === undefined || terms.policy.takesBack !== true
    ? terms
    : { ...terms, context: { ...terms.context, comesBackIn: comesBackIn(originals) } };

/** Brings sides back that the policy wants. Called behind a plan, when no page is due. */
export function comeBack(cache: Governed): void {
  const { originals, policy, kv, remaking, length: tokens } = cache;
  // A relative knows nothing of originals, and would see its pages change.
  if (originals === null || cache.hasForks) return;
  const wanted = policy.wanted?.() ?? [];
  if (wanted.length === 0) return;
  const { kvHeads, headDim } = cache.shape;
  const bytesBefore = kv.usedBytes;
  let left = cache.room.freeBytes;
  const changes: FormChange[] = [];
  const bytesOf = (form: PageForm): number =>
    isFormatName(form) ? pageBytes(form, kvHeads, headDim) : cache.latents!.bytesOf(form);
  for (const { layer, page, side, from, to } of wanted) {
    const bytes = sidesOf(side).length * bytesOf(to) - bytesOf(from);
    if (changes.length === AT_ONCE) break;
    if (bytes > left || (side !== 'kv' && kv.originalFormat(layer, page, side) !== null)) continue;
    if (changes.length === 0) cache.trials.finish();
    if (side === 'kv') {
      const codes = remaking.codesOfPage(layer, page, to);
      if (codes === null) continue;
      cache.mover.goes('degraded', { page, from, to });
      remaking.putPage(layer, page, codes);
    } else {
      const at = { layer, page, side };
      remaking.formOf(at);
      const codes = remaking.codes(at, to);
      if (codes === null) continue;
      cache.mover.goes('degraded', { page, from, to });
      remaking.put(at, codes);
    }
    left -= bytes;
    changes.push({ layer, page, side, from, to });
  }
  cache.mover.tell({ cause: 'degraded', tokens }, changes, bytesBefore);
}
