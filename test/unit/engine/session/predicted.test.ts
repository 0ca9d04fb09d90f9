// What a policy predicts is told at the end of its session, in reports and over HTTP; of one that tries nothing, and
// so predicts nothing, all of them say that.
import { expect, it } from 'vitest';
import { LogView } from '../../../../engine/serve/log-view.ts';
import { logDir } from '../../../../engine/state/folder.ts';
import { createPolicy, policies, predictedBy } from '../../../../policy/index.ts';
import { type Entry, readLog, sessionReport, timeline } from '../../../../witness/index.ts';
import { scratchFolders } from '../../witness/folder.ts';
import { entriesOf, ids, openEngine, written } from '../on-reference.ts';
import { onRuntime } from '../on-runtime.ts';

const folder = scratchFolders();
const { open } = onRuntime();

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
  // Of what was watched, the worst: also behind something of which nothing was promised and nothing found.
  const situation = entriesOf(dir, session.id, 'situation').at(-1)!;
  const canary = { layer: 0, page: 1, side: 'k', from: 'q8', to: 'rot4', age: 200 } as const;
  const canaries = [
    { ...canary, epsilonPromised: 0, epsilonNow: 0 },
    { ...canary, epsilonPromised: 0.1, epsilonNow: 0.5 },
    { ...canary, epsilonPromised: 0.1, epsilonNow: 0.2 },
  ];
  const seen = new LogView();
  for (const entry of [...entriesOf(dir, session.id, 'open'), situation])
    seen.add(
      entry.kind === 'open'
        ? entry
        : ({ ...entry, body: { situation: { ...situation.body.situation, canaries } } } as Entry),
    );
  expect(seen.session(session.id).quality.canaries).toMatchObject({ probes: 3, worst: { epsilonNow: 0.5 } });
});

it('tokens that are taken back take with them what the moves of their pages cost, whatever is believed of these now', async () => {
  const session = open({ kvBudget: '30%', tokensExpected: 1400 });
  const left = (): number => session.governed.summary.layerKld.reduce((sum, kld) => sum + kld, 0);
  await session.read(ids(1400));
  expect(left()).toBeGreaterThan(0);
  session.rewind(128);
  expect(left()).toBe(0);
  session.close();
});
