/** Calls about a session but for what is read into it and written over it. */
import { saveThresholdFile } from '../../../memory/index.ts';
import type { FormatName } from '../../../native/index.ts';
import type { ThresholdSet } from '../../../policy/index.ts';
import type { MemoryUsage, QualityFeedback, SessionReport } from '../../cache/types.ts';
import type { SessionOptions } from '../../options/types.ts';
import { Session } from '../../session/session.ts';
import type { Host } from '../host.ts';

/** Which session is meant. */
export interface OfSession {
  readonly session: string;
}

export const sessionCalls = (host: Host) => ({
  open: async (options: SessionOptions): Promise<string> => {
    const session = await host.opening(options, (setup) => Session.open(host.runtime, setup));
    host.keep(session);
    return session.id;
  },

  fork: async ({ session }: OfSession): Promise<string> => {
    const origin = host.session(session);
    const fork = await origin.awake(() => origin.fork());
    host.keep(fork);
    return fork.id;
  },

  report: ({ session }: OfSession): SessionReport => host.session(session).report(),

  memoryUsage: ({ session }: OfSession): MemoryUsage => host.session(session).governed.memoryUsage(),

  adaptThresholds: ({ session, feedback }: OfSession & { readonly feedback: QualityFeedback }): ThresholdSet =>
    host.session(session).governed.learnt.adapt(feedback),

  saveThresholds: async ({ session, path }: OfSession & { readonly path: string }): Promise<void> => {
    await saveThresholdFile(path, host.session(session).governed.learnt.thresholds(), {
      modelDigest: host.runtime.model.digest,
      shape: host.runtime.shape,
      log: host.state?.log ?? null,
    });
  },

  restore: ({
    session,
    layer,
    page,
    format,
  }: OfSession & { readonly layer: number; readonly page: number; readonly format: FormatName | undefined }) =>
    host.session(session).restore(layer, page, format),

  lowMemory: async ({ session, value }: OfSession & { readonly value: boolean }): Promise<void> => {
    const told = host.session(session);
    told.lowMemory = value;
    if (value) host.shared.parkAll(told.governed);
  },

  closeSession: ({ session, reason }: OfSession & { readonly reason: 'done' | 'aborted' | 'error' }): Promise<void> =>
    host.closeSession(session, reason),
});
