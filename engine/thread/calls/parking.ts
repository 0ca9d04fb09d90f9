/** Calls that park a session in a file and bring it back. */
import { type Caller, KvError } from '../../../native/index.ts';
import type { Progress, SessionOptions } from '../../options/types.ts';
import { findParked, parkedPath, readParked, writeParked } from '../../session/park/folder.ts';
import { parkedBytes } from '../../session/park/park.ts';
import { parseParked } from '../../session/park/parked-file.ts';
import { type Resumed, resumeSession } from '../../session/park/resume.ts';
import type { Session } from '../../session/session.ts';
import type { Host } from '../host.ts';

/** A session that was parked. */
export interface ParkedFile {
  /** Its id. */
  readonly session: string;
  /** Where it is. */
  readonly path: string;
  /** How large the file is. */
  readonly fileBytes: number;
  /** Tokens that it holds. */
  readonly tokens: number;
  /** Bytes that its cache took in memory. */
  readonly kvBytes: number;
}

export interface Parking {
  /** null: in the state folder. */
  readonly path: string | null;
  /** True if pages are written as what is left when they are predicted. */
  readonly predict: boolean;
}

export const parkingCalls = (host: Host) => ({
  park: async ({ session, ...where }: Parking & { readonly session: string }): Promise<ParkedFile> => {
    const parking = host.session(session);
    return parking.awake(() => park(host, parking, where));
  },

  /** A session as it would be parked; it stays open. */
  parkedBytes: async ({ session }: { readonly session: string }): Promise<Uint8Array> => {
    const parking = host.session(session);
    return parking.awake(() => parkedBytes(parking));
  },

  resume: async (
    { from, options }: { readonly from: string | Uint8Array; readonly options: SessionOptions },
    { tell, signal }: Caller<{ readonly progress: Progress }>,
  ): Promise<{ id: string; resumed: Resumed }> => {
    const isFile = typeof from === 'string';
    const parked = isFile ? readParked(findParked(host.state?.dir ?? null, from)) : parseParked(from, 'what was kept');
    const predictor = parked.head.predictor === null ? null : host.predictor.findIfSound();
    const reading = { signal, onProgress: (progress: Progress) => tell({ progress }) };
    const { session, resumed } = await host.opening(
      { ...parked.head.options, ...options },
      (setup) => resumeSession(host.runtime, setup, parked, reading, predictor),
      // Whoever names a pack wants that one, and the text is read again where it is another.
      options.pack === undefined ? parked.head.pack : undefined,
    );
    host.keep(session);
    return { id: session.id, resumed };
  },
});

async function park(host: Host, session: Session, { path, predict }: Parking): Promise<ParkedFile> {
  const predictor = predict ? host.predictor.findOrRefuse() : null;
  const bytes = parkedBytes(session, predictor);
  const target = path ?? (host.state === null ? null : parkedPath(host.state.dir, session.id));
  if (target === null)
    throw new KvError('bad-argument', 'an engine without a state folder parks where it is told', {
      hint: 'session.park(path)',
    });
  writeParked(target, bytes);
  const { tokens, kvBytes } = { tokens: session.length, kvBytes: session.governed.usedBytes };
  session.governed.mover.write('note', { parked: tokens, fileBytes: bytes.length, tokens });
  await host.closeSession(session.id, 'done');
  return { session: session.id, path: target, fileBytes: bytes.length, tokens, kvBytes };
}
