// Codes of a page that are damaged in memory are made again of the original of their side, in the format that they had
// and in as many bytes. The log tells it and replays as ever, no layer is doubted for it, and a damaged original is
// refused and never used.
import { describe, expect, it } from 'vitest';
import { Meter } from '../../../../engine/metrics/meter.ts';
import type { SessionOptions } from '../../../../engine/options/types.ts';
import { Session } from '../../../../engine/session/session.ts';
import { type FormatName, SIDES, type Side } from '../../../../native/index.ts';
import { defaultThresholds, type LayerChange, type PageSide } from '../../../../policy/index.ts';
import { explain, explanationText, replaySession, timeline } from '../../../../witness/index.ts';
import { scratchFolders } from '../../witness/folder.ts';
import { ids } from '../on-reference.ts';
import { type Logged, logged, onRuntime } from '../on-runtime.ts';

const folder = scratchFolders();
const governed = { kvBudget: '25%', tokensExpected: 1700 } as const;

interface Heard extends Logged {
  readonly told: readonly string[];
}

/** Puts the codes of another page of the same format in place of a side's own. → which side that is */
function damage({ cache }: Session, layer: number, side: Side): PageSide {
  const { pages } = cache.table(layer);
  const forms = Array.from({ length: pages }, (_, page) => cache.format(layer, page, side));
  const page = forms.findIndex((form, at) => form !== 'q8' && forms.indexOf(form, at + 1) > 0);
  expect(page).toBeGreaterThanOrEqual(0);
  const other = forms.indexOf(forms[page]!, page + 1);
  cache.exchangeSide(layer, page, side, cache.exportSide(layer, other, side));
  return { layer, page, side };
}

const bytesOf = ({ cache }: Session, { layer, page, side }: PageSide): string => {
  const { format, bytes } = cache.exportSide(layer, page, side);
  return `${format} ${Buffer.from(bytes).toString('base64')}`;
};

describe('codes that are damaged', () => {
  const { runtime } = onRuntime();

  async function heard(options: SessionOptions, work: (session: Session) => Promise<void>): Promise<Heard> {
    const told: string[] = [];
    const meter = new Meter([], (name, fields) => told.push(`${name} ${JSON.stringify(fields)}`));
    const thresholds = defaultThresholds(runtime().shape.layers);
    const run = await logged(
      folder(),
      (log) => Session.open(runtime(), { ...governed, ...options, meter, log, thresholds }),
      work,
    );
    expect(replaySession(run.entries)).toMatchObject({ equal: true });
    return { ...run, told };
  }

  const notesOf = ({ entries }: Logged): Readonly<Record<string, unknown>>[] =>
    entries.filter(({ kind }) => kind === 'note').map(({ body }) => body as unknown as Record<string, unknown>);
  const qualityOf = (of: Logged): string[] =>
    notesOf(of).flatMap(({ layerChanges }) => ((layerChanges ?? []) as LayerChange[]).map(({ source }) => source));

  it.each([
    ['disk', 'k'],
    ['memory', 'v'],
  ] as const)('are made again of originals, as they were (%s, %s)', async (originals, side) => {
    let format: FormatName | null = null;
    const run = await heard({ originals }, async (session) => {
      await session.read(ids(1300, 3));
      const { usedBytes } = session.cache;
      const before = Array.from({ length: session.cache.table(2).pages }, (_, page) =>
        bytesOf(session, { layer: 2, page, side }),
      );
      const damaged = damage(session, 2, side);
      format = session.cache.format(2, damaged.page, side);
      expect(bytesOf(session, damaged)).not.toBe(before[damaged.page]);
      // A change of the form by a decision would hide what is asked here.
      session.governed.mending.check();
      expect(bytesOf(session, damaged)).toBe(before[damaged.page]);
      const decoded = session.cache.decode(2, damaged.page, side);
      const exact = session.governed.originals!.read(2, damaged.page, side)!;
      session.cache.exchangeSide(
        2,
        damaged.page,
        side,
        session.governed.originals!.encoded(exact, damaged.page, side, format),
      );
      expect(session.cache.decode(2, damaged.page, side)).toEqual(decoded);
      expect(session.cache.usedBytes).toBe(usedBytes);
      await session.read(ids(300, 4));
      expect(session.report().damage).toEqual({ sides: 1, mendedSides: 1 });
      expect(session.report().kvBytes).toBeLessThanOrEqual(session.report().budgetBytes!);
    });
    const [note] = notesOf(run).filter(({ damaged }) => damaged !== undefined);
    expect(note).toMatchObject({ damaged: [{ layer: 2, side, format, mended: true }], tokens: 1300 });
    const [{ page }] = note!['damaged'] as [PageSide];
    const seen = run.entries.flatMap(({ kind, body }) =>
      kind === 'situation' ? ((body as { situation: { damaged?: PageSide[] } }).situation.damaged ?? []) : [],
    );
    expect(seen).toEqual([{ layer: 2, page, side, mended: true }]);
    expect(qualityOf(run)).not.toContain('codes');
    expect(run.told).toContainEqual(expect.stringMatching(/^codes-mended .*"sides":1/));
    // What is told to people: the story of the page and of the session, and its report.
    const { session } = run.entries[0]!;
    expect(
      timeline(run.dir, session).some(({ text }) => /1 page side in layer 2 .*made again of originals/.test(text)),
    ).toBe(true);
    const decided = run.entries.find(({ kind, body }) => {
      const { decision } = body as unknown as { decision?: PageSide };
      return kind === 'decision' && decision!.layer === 2 && decision!.page === page;
    })!;
    const told = explain(run.dir, decided.seq);
    expect(told.damaged).toMatchObject([{ layer: 2, page, side, mended: true, tokens: 1300 }]);
    expect(explanationText(told)).toContain('made again of their original');
  });

  it('stay so without originals: the layer is watched, and it is said what would have helped', async () => {
    const run = await heard({}, async (session) => {
      await session.read(ids(1300, 3));
      damage(session, 2, 'v');
      await session.read(ids(300, 4));
      expect(session.report().damage).toEqual({ sides: 1, mendedSides: 0 });
    });
    expect(qualityOf(run)).toContain('codes');
    expect(run.told).toContainEqual(expect.stringMatching(/^codes-damaged .*"sides":1/));
    expect(run.told.some((one) => one.startsWith('codes-mended'))).toBe(false);
  });

  it('are not made again of an original that is damaged itself', async () => {
    const run = await heard({ originals: 'memory' }, async (session) => {
      await session.read(ids(1300, 3));
      const { layer, page, side } = damage(session, 2, 'v');
      const damaged = bytesOf(session, { layer, page, side });
      const { originals } = session.governed;
      originals!.read(layer, page, side)!.bytes[100]! ^= 4;
      session.governed.mending.check();
      expect(bytesOf(session, { layer, page, side })).toBe(damaged);
      expect(session.report()).toMatchObject({
        damage: { sides: 1, mendedSides: 0 },
        originals: { place: 'none', lost: 'checksum-mismatch' },
      });
      await session.read(ids(300, 4));
    });
    expect(run.told.map((one) => one.split(' ')[0])).toEqual(
      expect.arrayContaining(['originals-lost', 'codes-damaged']),
    );
    expect(qualityOf(run)).toContain('codes');
  });

  it('are found and made again while the session goes on', async () => {
    const run = await heard({ originals: 'memory' }, async (session) => {
      await session.read(ids(1300, 3));
      damage(session, 2, 'k');
      await session.read(ids(300, 4));
      expect(session.report().damage).toEqual({ sides: 1, mendedSides: 1 });
    });
    expect(notesOf(run).filter(({ damaged }) => damaged !== undefined)).toHaveLength(1);
    expect(qualityOf(run)).not.toContain('codes');
  });

  it('are made again before their page moves, and where it is back for an answer', async () => {
    const run = await heard({ originals: 'memory', promote: 2, kvBudget: '27%' }, async (session) => {
      await session.read(ids(1000, 3));
      const answer = session.generate(ids(20, 9), { maxTokens: 6, temperature: 1, seed: 3 });
      await answer.next();
      const { promoted, mending } = session.governed;
      const before = promoted!.count;
      expect(before).toBeGreaterThan(0);
      const raised = Array.from({ length: runtime().shape.layers }, (_, layer) =>
        SIDES.flatMap((side) =>
          Array.from({ length: session.cache.table(layer).pages }, (_page, page) => ({ layer, page, side })),
        ),
      )
        .flat()
        .filter(({ layer, page, side }) => promoted!.lowForm(layer, page, side) !== null);
      // What is known of codes is what they are when they are looked at first.
      mending.check();
      const { layer, page, side } = raised[0]!;
      const low = promoted!.lowForm(layer, page, side)!;
      const { format, bytes } = session.cache.exportSide(layer, page, side);
      const like = raised.find((it) => it.side === side && !(it.layer === layer && it.page === page))!;
      const other = session.cache.exportSide(like.layer, like.page, side);
      expect([other.format, bytes.length]).toEqual([format, other.bytes.length]);
      session.cache.exchangeSide(layer, page, side, other);
      mending.before(layer, page, side);
      expect(session.cache.format(layer, page, side)).toBe(low);
      expect(promoted!.count).toBe(before - 1);
      expect(session.report().damage).toEqual({ sides: 1, mendedSides: 1 });
      expect(session.cache.auditBytes()).toBe(session.cache.usedBytes);
      await answer.return(undefined as never);
      await session.read(ids(300, 4));
    });
    expect(qualityOf(run)).not.toContain('codes');
  });

  it('of a page that a fork shares are made again for both, and told once', async () => {
    const run = await heard({ originals: 'memory', kvBudget: '40%', tokensExpected: 1400 }, async (session) => {
      await session.read(ids(1300, 3));
      session.governed.mending.check();
      const fork = session.fork();
      fork.governed.mending.check();
      damage(session, 2, 'v');
      session.governed.mending.check();
      fork.governed.mending.check();
      expect(session.report().damage).toEqual({ sides: 1, mendedSides: 1 });
      expect(fork.report().damage).toEqual({ sides: 0, mendedSides: 0 });
      fork.close();
    });
    expect(run.told.filter((one) => one.startsWith('codes-'))).toHaveLength(1);
  });
});
