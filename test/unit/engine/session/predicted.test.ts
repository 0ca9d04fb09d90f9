// What a policy predicts is told at the end of its session, in reports and over HTTP; of one that tries nothing, and
// so predicts nothing, all of them say that.
import { expect, it } from 'vitest';
import { LogView } from '../../../../engine/serve/log-view.ts';
import { logDir } from '../../../../engine/state/folder.ts';
import { createPolicy, policies, predictedBy } from '../../../../policy/index.ts';
import { readLog, sessionReport, timeline } from '../../../../witness/index.ts';
import { scratchFolders } from '../../witness/folder.ts';
import { entriesOf, openEngine, written } from '../on-reference.ts';

const folder = scratchFolders();

it('is predicted by policies that try pages, and by those of others that say more than nothing', () => {
  for (const id of Object.keys(policies).filter((name) => !['fixed', 'table'].includes(name)))
    expect(predictedBy(id, 0), id).toBe(createPolicy(id).needsTrials ? 0 : null);
  expect([predictedBy('mine', 0), predictedBy('mine', 0.1)]).toEqual([null, 0.1]);
});

it.each([
  ['price', true],
  ['uniform', false],
  ['tiers', false],
  ['streaming-pages', false],
] as const)('the end of a session under %s says whether its divergence was predicted', async (policy, predicts) => {
  const dir = folder();
  const engine = await openEngine(dir);
  const session = await written(engine, { policy, kvBudget: '40%' });
  await session.close();
  await engine.close();
  expect(entriesOf(dir, session.id, 'decision').some(({ body }) => body.verdict.accepted)).toBe(true);
  const end = timeline(logDir(dir), session.id).at(-1)!;
  expect(end.text).toMatch(
    predicts ? /divergence predicted as [\d.e-]+ nats, not measured\.$/ : /not predicted, not measured\.$/,
  );
  const html = sessionReport(logDir(dir), session.id);
  expect(html.includes('The policy expects answers to diverge by')).toBe(predicts);
  expect(html.includes('the policy predicts nothing')).toBe(!predicts);
  const view = new LogView();
  for (const entry of readLog(logDir(dir))) view.add(entry);
  expect(view.session(session.id).quality.predictedKld === null).toBe(!predicts);
});
