/** What entries of a session tell of its pages: how many tokens there are, and in what form sides are from then on. */
import { type Side, sidesOf } from '../native/index.ts';
import { isLatent, type LaterForm } from '../policy/index.ts';
import type { NoteBody } from './entries/log-notes.ts';
import type { Entry } from './types.ts';

/** A side of a page, and the form in which it is now. */
export interface ToldSide {
  readonly layer: number;
  readonly page: number;
  readonly side: Side;
  readonly to: LaterForm;
  /** True: it came back from its original for an answer. */
  readonly isPromoted?: true;
}

/** What one entry tells. */
export interface ToldForms {
  /** Undefined: as many as before. */
  readonly tokens?: number | undefined;
  readonly sides: readonly ToldSide[];
}

interface Moved {
  readonly layer: number;
  readonly page: number;
  readonly side: Side | 'kv';
  readonly to: LaterForm;
}

/** The sides of a part that has moved. */
export const eachSide = ({ layer, page, side, to }: Moved): ToldSide[] =>
  sidesOf(side).map((one) => ({ layer, page, side: one, to }));

/** What an entry tells of forms. */
export function formsTold({ kind, body }: Entry): ToldForms {
  if (kind === 'situation') {
    const { tokens, trials } = (body as Entry<'situation'>['body']).situation;
    // Beside a latent that is held, sides are reported in the format of the window.
    const told = trials.filter(({ side, from }) => side !== 'kv' || isLatent(from));
    return { tokens, sides: told.flatMap(({ from, ...place }) => eachSide({ ...place, to: from })) };
  }
  if (kind === 'decision') {
    const { decision, verdict } = body as Entry<'decision'>['body'];
    return { sides: verdict.accepted ? eachSide(decision) : [] };
  }
  if (kind === 'change') {
    const { changes, tokens } = body as Entry<'change'>['body'];
    return { tokens, sides: changes.flatMap(eachSide) };
  }
  if (kind !== 'note') return { sides: [] };
  const { promoted = [], returned = [], tokens } = body as NoteBody;
  return { tokens, sides: [...promoted.map((side) => ({ ...side, isPromoted: true as const })), ...returned] };
}
