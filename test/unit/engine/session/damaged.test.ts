// Codes of a page that change without a move are told in a situation, and the log that holds it is replayed.
import { expect, it } from 'vitest';
import { leave, setupOf } from '../../../../engine/session/experience.ts';
import { Session } from '../../../../engine/session/session.ts';
import { logDir, openState } from '../../../../engine/state/folder.ts';
import { Runtime } from '../../../../engine/transformer/runtime/runtime.ts';
import { createPolicy, type LayerChange } from '../../../../policy/index.ts';
import { readLog, replaySession, timeline } from '../../../../witness/index.ts';
import { scratchFolders } from '../../witness/folder.ts';
import { entriesOf, ids, MODEL } from '../on-reference.ts';

const folder = scratchFolders();

it('a page whose codes are those of another one is seen, and decided about again as it was', async () => {
  const dir = folder();
  const runtime = await Runtime.open({ model: MODEL, threads: 1 });
  const state = await openState(dir, { mode: 'halt' });
  const session = Session.open(runtime, await setupOf(runtime, { kvBudget: '25%', tokensExpected: 1700 }, state));
  try {
    await session.read(ids(1300, 3));
    const { cache } = session;
    const forms = Array.from({ length: cache.table(2).pages }, (_, page) => cache.format(2, page, 'v'));
    const [page, other] = forms
      .flatMap((form, at) =>
        forms.map((it, behind) => (form !== 'q8' && it === form && behind > at ? [at, behind] : [])),
      )
      .find((pair) => pair.length > 0)! as [number, number];
    cache.exchangeSide(2, page, 'v', cache.exportSide(2, other, 'v'));
    await session.read(ids(300, 4));
    await leave(session.governed, state.book, 'done');
    const damaged = entriesOf(dir, session.id, 'situation').flatMap(({ body }) => body.situation.damaged ?? []);
    expect(damaged).toEqual([{ layer: 2, page, side: 'v' }]);
    const changes = entriesOf(dir, session.id, 'note').flatMap(
      ({ body }) => (body['layerChanges'] ?? []) as LayerChange[],
    );
    expect(changes.filter(({ source }) => source === 'codes')).toMatchObject([{ layer: 2 }]);
    const report = replaySession([...readLog(logDir(dir), { session: session.id })], createPolicy);
    expect(report).toMatchObject({ equal: true, complete: true });
    expect(timeline(logDir(dir), session.id).some(({ text }) => text.includes('codes'))).toBe(true);
  } finally {
    session.close();
    await state.close();
    await runtime.close();
  }
});
