/** The call behind `npm start`. */
import type { Caller } from '../../../native/index.ts';
import { type TourEvent, type TourOptions, type TourResult, tour, tourTokens } from '../../evaluate/tour.ts';
import type { SessionOptions } from '../../options/types.ts';
import { setupOf } from '../../session/experience.ts';
import type { Session } from '../../session/session.ts';
import type { Host } from '../host.ts';

export const tourCalls = (host: Host) => ({
  tour: async (
    params: { readonly session: SessionOptions; readonly tour: TourOptions },
    { tell, signal }: Caller<TourEvent>,
  ): Promise<TourResult> => {
    const { runtime, state, meter } = host;
    const opened: Session[] = [];
    try {
      const tokensExpected = tourTokens(runtime, params.tour);
      const setup = { ...(await setupOf(runtime, { ...params.session, tokensExpected }, state)), meter };
      const result = await tour(runtime, setup, params.tour, tell, signal, (session) => {
        opened.push(session);
        host.keep(session);
      });
      for (const session of opened) session.governed.learnt.adapt(result.divergence);
      await host.closeSession(result.report.session, 'done');
      return result;
    } catch (error) {
      for (const { id } of opened) await host.closeSession(id, signal.aborted ? 'aborted' : 'error');
      throw error;
    }
  },
});
