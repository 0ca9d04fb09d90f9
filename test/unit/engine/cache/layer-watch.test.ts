// Layers that err more than was promised, as whoever keeps the engine hears of them: when the first is watched, when
// one is degraded, when none is any more, and never more often than a session may tell; every change is counted, beside
// the engine as over its log.
import { expect, it } from 'vitest';
import { LayerWatch } from '../../../../engine/cache/layer-watch.ts';
import { type EngineEvent, eventTeller, eventText } from '../../../../engine/events/event.ts';
import { Meter } from '../../../../engine/metrics/meter.ts';
import { LogView } from '../../../../engine/serve/log-view.ts';
import { setupOf } from '../../../../engine/session/experience.ts';
import { Session } from '../../../../engine/session/session.ts';
import { logDir, openState } from '../../../../engine/state/folder.ts';
import { Runtime } from '../../../../engine/transformer/runtime/runtime.ts';
import { wrongLaw } from '../../../../lab/evaluate/plants.ts';
import type { LayerChange } from '../../../../policy/index.ts';
import { readLog } from '../../../../witness/index.ts';
import { scratchFolders } from '../../witness/folder.ts';
import { ids, MODEL } from '../on-reference.ts';

const folder = scratchFolders();
const SESSION = '01900000-0000-7000-8000-000000000001';

function listener(): { meter: Meter; heard: EngineEvent[] } {
  const heard: EngineEvent[] = [];
  return {
    heard,
    meter: new Meter(
      [],
      eventTeller((event) => heard.push(event)),
    ),
  };
}

const change = (layer: number, state: string, source: LayerChange['source'] = 'error'): LayerChange => {
  const at = source === 'agreement' ? `exact/healthy/relaxed/headroom/${state}` : `exact/${state}/relaxed/headroom`;
  return { layer, state: at, threshold: 'quality.watched', measured: 2, bound: 1.5, source };
};

const linesOf = (text: string): string[] =>
  text.split('\n').filter((line) => line.startsWith('palimpsest_layer_changes_total'));

it('the first layer that is watched or degraded is told, and the end of it', () => {
  const { meter, heard } = listener();
  const watch = new LayerWatch(SESSION, meter);
  watch.hear(128, [change(0, 'watched', 'topic'), change(1, 'watched', 'topic')]);
  watch.hear(256, [change(2, 'watched')]);
  watch.hear(384, [change(2, 'degraded')]);
  watch.hear(512, [change(2, 'recovering'), change(0, 'healthy')]);
  watch.hear(640, [change(1, 'healthy'), change(2, 'healthy')]);
  watch.hear(768, []);
  expect(heard).toMatchObject([
    { event: 'layers-watched', session: SESSION, tokens: 128, layers: 2, by: 'topic' },
    { event: 'layers-degraded', tokens: 384, layers: 1, by: 'error' },
    { event: 'layers-watched', tokens: 512, layers: 2, by: 'error' },
    { event: 'layers-healthy', tokens: 640 },
  ]);
  expect(eventText(heard[1]!)).toBe(
    'Session 00000001 takes 1 layer for degraded (error): errors there exceed what was promised, and moves get dearer.',
  );
  expect(linesOf(meter.text())).toEqual([
    'palimpsest_layer_changes_total{region="quality",state="degraded"} 1',
    'palimpsest_layer_changes_total{region="quality",state="healthy"} 3',
    'palimpsest_layer_changes_total{region="quality",state="recovering"} 1',
    'palimpsest_layer_changes_total{region="quality",state="watched"} 3',
    'palimpsest_layer_changes_total{region="trust",state="trusted"} 0',
    'palimpsest_layer_changes_total{region="trust",state="watched"} 0',
  ]);
});

it('of trust, the first layer that no longer agrees with earlier sessions is told', () => {
  const { meter, heard } = listener();
  const watch = new LayerWatch(SESSION, meter);
  watch.hear(128, [change(0, 'trusted', 'agreement'), change(1, 'trusted', 'agreement')]);
  watch.hear(256, [change(0, 'watched', 'agreement')]);
  watch.hear(384, [change(1, 'watched', 'agreement')]);
  watch.hear(512, [change(0, 'trusted', 'agreement'), change(1, 'trusted', 'agreement')]);
  watch.hear(640, [change(0, 'watched', 'agreement')]);
  expect(heard).toMatchObject([
    { event: 'layers-doubted', tokens: 256, layers: 1 },
    { event: 'layers-doubted', tokens: 640, layers: 1 },
  ]);
  expect(meter.text()).toContain('palimpsest_layer_changes_total{region="trust",state="watched"} 3');
});

it('a session tells a bounded number of events, and counts on', () => {
  const { meter, heard } = listener();
  const watch = new LayerWatch(SESSION, meter);
  for (let n = 0; n < 100; n++) {
    watch.hear(n, [change(0, 'watched'), change(1, 'watched', 'agreement')]);
    watch.hear(n, [change(0, 'healthy'), change(1, 'trusted', 'agreement')]);
  }
  expect(heard.length).toBe(32);
  expect(meter.text()).toContain('palimpsest_layer_changes_total{region="quality",state="watched"} 100');
});

it('states and sources that no machine of ours has are neither told nor counted', () => {
  const { meter, heard } = listener();
  const watch = new LayerWatch(SESSION, meter);
  watch.hear(128, [
    change(0, 'glorious'),
    { ...change(1, 'watched'), source: 'a prompt of somebody' as 'error' },
    { ...change(2, 'trusted', 'agreement'), state: '' },
  ]);
  expect(heard).toEqual([]);
  expect(linesOf(meter.text()).filter((line) => !line.endsWith(' 0'))).toEqual([
    'palimpsest_layer_changes_total{region="quality",state="watched"} 1',
  ]);
});

it('a session that begins with a law that is wrong tells it, as the log of it does', async () => {
  const dir = folder();
  const { meter, heard } = listener();
  const runtime = await Runtime.open({ model: MODEL, threads: 1 });
  const state = await openState(dir, { mode: 'halt' });
  const setup = await setupOf(runtime, { kvBudget: '25%', tokensExpected: 1000 }, state);
  const thresholds = wrongLaw(setup.thresholds, runtime.shape.layers);
  const session = Session.open(runtime, { ...setup, thresholds, meter });
  try {
    await session.read(ids(900, 3));
    expect(heard.slice(1)).toMatchObject([{ event: 'layers-watched', session: session.id, layers: 2, by: 'gain' }]);
    await state.log.flush();
    const view = new LogView();
    for (const entry of readLog(logDir(dir))) view.add(entry);
    expect(linesOf(view.metrics())).toEqual(linesOf(meter.text()));
    expect(linesOf(view.metrics())).toContain('palimpsest_layer_changes_total{region="quality",state="watched"} 2');
  } finally {
    session.close();
    await state.close();
    await runtime.close();
  }
});
