// Lists and explanations over a small recorded log: two sessions of two layers whose every number can be checked by
// hand.
import { existsSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { beforeAll, describe, expect, it } from 'vitest';
import type { KvError } from '../../../native/index.ts';
import { BOUND_IDS, createPolicy, defaultThresholds, type Policy, thresholdOf } from '../../../policy/index.ts';
import {
  type DecisionFilter,
  decisionsText,
  type Entry,
  entryText,
  explain,
  explanationText,
  openAuditIndex,
  openLogQuery,
  openWitnessLog,
  parseRange,
  parseTime,
  RULES,
  readEntry,
  sessionsText,
  similarSession,
  similarText,
  verifyLog,
  verifyText,
} from '../../../witness/index.ts';
import { contextOf, f16Bytes, simulate } from '../../suite/policy-simulation.ts';
import { scratchFolders } from './folder.ts';
import { recordSession } from './session.ts';

const folder = scratchFolders();
let dir = '';
let first: number[] = [];
const START_MS = Date.UTC(2026, 0, 31, 13, 5);

beforeAll(async () => {
  dir = folder();
  let now = START_MS - 1000;
  const log = await openWitnessLog({ dir, clock: () => (now += 1000) });
  first = recordSession(log, 'first');
  recordSession(log, 'second', { situations: 2, close: false });
  await log.close();
});

const seqs = async (filter: DecisionFilter): Promise<number[]> =>
  (await openLogQuery(dir).decisions(filter)).map((row) => row.seq);

/** A policy that moves the first page of the keys of layer 0 without a trial. */
function untried(): Policy {
  const because = {
    threshold: 'pressure.critical',
    measured: 1.007,
    bound: 1,
    unit: 'share',
    origin: 'default',
    rule: 'deficit',
  } as const;
  return {
    id: 'untried',
    version: 1,
    needsTrials: false,
    open: () => ({
      decide: () => [
        {
          ...{ layer: 0, page: 1, side: 'k', from: 'q8', to: 'rot4', retry: false, bytesFreed: 8320, because },
          ...{ epsilonFrom: null, epsilonTo: null, price: null },
        },
      ],
      judge: () => ({ accepted: true, because }),
      summary: () => ({ priceThreshold: 0, predictedKld: 0, layerStates: [], layerEpsilonMax: [], layerKld: [] }),
    }),
  };
}

// Whole sessions of every policy, with drifting errors and a call for low memory: what they give as reasons, a person
// can be told.
describe('rules', () => {
  it('of every plan and verdict have a meaning in words', () => {
    const context = contextOf({ layers: 4 });
    const tokens = 2560;
    const budgetBytes = Math.floor(0.25 * f16Bytes(context, tokens));
    const runs: Parameters<typeof simulate>[0][] = [
      ...['price', 'uniform', 'age'].map((id) => ({
        policy: createPolicy(id),
        context,
        tokens,
        budgetBytes,
        chunk: 1,
      })),
      { policy: createPolicy('price'), context, tokens, budgetBytes, drift: () => 3 },
      { policy: createPolicy('price'), context, tokens, budgetBytes, drift: () => null },
      { policy: createPolicy('price'), context, tokens, lowMemoryFrom: 1280 },
      { policy: createPolicy('price'), context, tokens, kldBudget: 0.01 },
      { policy: createPolicy('fixed', { k: 'rot4', v: 'rot2' }), context, tokens },
    ];
    const reasons = runs.flatMap((run) =>
      simulate(run).entries.flatMap(({ decisions, verdicts }) =>
        [...decisions, ...verdicts].map(({ because }) => because),
      ),
    );
    expect(reasons.filter(({ threshold }) => !BOUND_IDS.includes(threshold))).toEqual([]);
    const rules = new Set(reasons.map(({ rule }) => rule));
    expect([...rules].filter((rule) => RULES[rule] === undefined)).toEqual([]);
    for (const rule of [
      'price',
      'deficit',
      'low-memory',
      'settled-trial',
      'trial-again',
      'deficit-override',
      'not-seen',
    ])
      expect(rules).toContain(rule);
  });
});

describe('list', () => {
  it('gives decisions newest first, narrowed by every field', async () => {
    const all = await openLogQuery(dir).decisions();
    expect(all.length).toBe(28);
    expect(all.map((row) => row.seq)).toEqual(all.map((row) => row.seq).sort((a, b) => b - a));
    const by = (test: (row: (typeof all)[number]) => boolean): number[] => all.filter(test).map((row) => row.seq);
    expect(await seqs({ session: 'second' })).toEqual(by((row) => row.session === 'second'));
    expect(await seqs({ layer: 1, side: 'v' })).toEqual(by((row) => row.layer === 1 && row.side === 'v'));
    expect(await seqs({ page: 4 })).toEqual(by((row) => row.page === 4));
    expect(await seqs({ accepted: false })).toEqual(by((row) => !row.accepted));
    expect((await seqs({ accepted: false })).length).toBeGreaterThan(0);
    expect(await seqs({ reason: 'retried' })).toEqual(by((row) => row.verdictRule === 'retried'));
    expect(await seqs({ reason: 'price' })).toEqual(by(() => true));
    expect(await seqs({ reason: 'nothing' })).toEqual([]);
    expect(await seqs({ tokensMin: 384, tokensMax: 384 })).toEqual(by((row) => row.tokens === 384));
    expect(await seqs({ fromMs: START_MS + 10_000, toMs: START_MS + 20_000 })).toEqual(
      by((row) => row.timeMs >= START_MS + 10_000 && row.timeMs <= START_MS + 20_000),
    );
    expect(await seqs({ limit: 3 })).toEqual(all.slice(0, 3).map((row) => row.seq));
    expect(await seqs({ limit: 3, beforeSeq: all[2]?.seq as number })).toEqual(all.slice(3, 6).map((row) => row.seq));
    await expect(seqs({ limit: 0 })).rejects.toMatchObject({ code: 'bad-argument' });
  });

  it('gives sessions with their ends', async () => {
    const rows = await openLogQuery(dir).sessions();
    expect(rows).toMatchObject([
      { session: 'second', end: 'open', closedMs: null, tokens: 384, decisions: 8, kvBytesF16: null },
      {
        session: 'first',
        end: 'done',
        tokens: 900,
        decisions: 20,
        model: 'tiny-model',
        policy: 'tiny',
        kvBytesF16: 1_382_400,
      },
    ]);
    expect(await openLogQuery(dir).sessions({ limit: 1, toMs: START_MS + 5000 })).toMatchObject([{ session: 'first' }]);
  });

  // Long values on terminals of every width: no line is wider, the sessions stay apart, and a pipe gets all of it.
  it('follows the width of the terminal, and cuts nothing in a pipe', async () => {
    const [row] = await openLogQuery(dir).decisions({ limit: 1 });
    const id = '019a0b1c-2d3e-7f40-8123-456789abcdef';
    const long = { ...row!, seq: 99_999_999, session: id, tokens: 9_999_999, layer: 126, page: 99_999 };
    const other = {
      ...long,
      session: `${id.slice(0, -1)}0`,
      accepted: false,
      verdictRule: 'a-long-rule',
    };
    const [session] = await openLogQuery(dir).sessions();
    const longSession = { ...session!, session: id, model: 'a model \u001b[2J with a long name', policy: 'uniform' };
    for (const columns of [70, 80, 120, 200]) {
      const text = decisionsText([long, other], columns);
      for (const line of [...text.split('\n'), ...sessionsText([longSession], columns).split('\n')])
        expect([...line].length).toBeLessThanOrEqual(columns);
      for (const { session: whole } of [long, other]) expect(text).toContain(columns < 120 ? whole.slice(-8) : whole);
    }
    const piped = `${decisionsText([long, other])}${sessionsText([longSession])}`;
    for (const part of [id, other.session, 'a-long-rule', String.raw`a model \x1b[2J with a long name`])
      expect(piped).toContain(part);
    expect(piped).toContain('tokens: in the cache when it was decided');
    expect(decisionsText([row!])).toContain('-- 2026-01-31 UTC --');
    expect([decisionsText([]), sessionsText([])]).toEqual(['No decision matches.', 'The log has no sessions.']);
  });

  // Two neighbours, one of which was compared with the exact cache: the other shows what its policy predicted, and says
  // so.
  it('says of a similar session what divergence was measured, or else predicted', () => {
    const payload = {
      ...{ session: 'one\u001b[2J', modelDigest: 'd', family: 'llama', policy: 'price', priceThreshold: 2e-9 },
      ...{ effectiveBits: 4.25, meanKld: 0.0123, predictedKld: 0.04, tokens: 900, kvBytes: 1, decisions: 0 },
      ...{
        formats: null,
        reason: 'done',
        endMs: null,
        stateDir: null,
        plainDigest: null,
        adapters: null,
        pack: null,
        textPlace: null,
        writer: 0,
        prefix: null,
        probed: false,
        teaches: false,
        experience: null,
      },
    };
    const other = { ...payload, session: 'two', meanKld: null };
    const untried = { ...other, session: 'three', policy: 'uniform', predictedKld: 0 };
    const text = similarText([
      similarSession({ id: { log: 'a', seq: 8 }, distance: 0.125, payload: untried }),
      { id: { log: 'a', seq: 7 }, distance: 0.25, payload },
      { id: { log: 'a', seq: 2 ** 32 + 9 }, distance: 0.5, payload: other },
    ]);
    expect(text).toMatch(/^one\\x1b\[2J +7 +0\.2500 +900 +4\.25 +2\.00e-9 +0\.0123 +measured$/m);
    expect(text).toMatch(/^two +1:9 +0\.5000 +900 +4\.25 +2\.00e-9 +0\.04 +predicted$/m);
    expect(text).toMatch(/^three +8 +0\.1250 +900 +4\.25 +2\.00e-9 +– +not predicted$/m);
    expect(similarText([])).toBe('No other session is in the index yet.');
  });

  it('tells what verify found', () => {
    const report = verifyLog(dir);
    expect(verifyText(report)).toContain(`Sound: ${report.entries} entries in 1 segment of log ${report.logId}.`);
    expect(
      verifyText({
        ...report,
        ok: false,
        entries: 1,
        problem: { segment: 'x', offset: 1, seq: 2, what: 'x at byte 1: broken' },
      }),
    ).toBe('DAMAGED after 1 sound entry.\nx at byte 1: broken');
    expect(entryText(readEntry(dir, 1))).toContain('Entry 1: open of session first, 2026-01-31 13:05:02 UTC');
  });

  // An evidence entry of thirty layers, as the engine writes it, would be 190 lines of JSON, nearly all of it defaults.
  it('shows an entry folded: defaults are counted, what was learned stands there', () => {
    const defaults = defaultThresholds(30);
    const learned = { ...thresholdOf(defaults, 'price.start'), value: 3e-9, origin: 'learned' as const, samples: 2 };
    const text = entryText({
      seq: 4,
      timeMs: START_MS,
      session: 'first',
      kind: 'evidence',
      body: {
        fingerprint: Array.from({ length: 10 }, (_, i) => i / 7),
        neighbours: [{ session: 'first', distance: 0.25, seq: 3 }],
        thresholds: { ...defaults, thresholds: { ...defaults.thresholds, 'price.start': learned } },
      },
    } as Entry);
    const lines = text.split('\n');
    expect(lines.length).toBeLessThan(40);
    for (const line of lines.filter((one) => !one.includes('"source"'))) expect(line.length).toBeLessThanOrEqual(80);
    expect(text).toContain('"origin": "learned"');
    expect(text).toContain(`"${Object.keys(defaults.thresholds).length - 1} more"`);
    expect(text).not.toContain('"pressure.enter"');
    expect(text).toContain('{"session":"first","distance":0.25,"seq":3}');
  });

  // No database may be started for a log that is refused anyway: its folder would be there.
  it('refuses a damaged log before a database is made', async () => {
    const damaged = folder();
    const log = await openWitnessLog({ dir: damaged });
    for (let i = 0; i < 3; i++) recordSession(log, `s${i}`);
    await log.close();
    const path = join(damaged, '00000000.wal');
    const bytes = readFileSync(path);
    bytes[Math.floor(bytes.length / 2)]! ^= 1;
    writeFileSync(path, bytes);
    const sql = join(damaged, 'sql');
    await expect(openAuditIndex({ logDir: damaged, dir: sql })).rejects.toMatchObject({ code: 'bad-log' });
    expect(existsSync(sql)).toBe(false);
  });
});

describe('explain', () => {
  // Layer 0, keys of page 0: ε = 0.02, price = 4·1·0.0004 / 12416 bytes = 1.29e-7, under 2e-6.
  it('tells an accepted move', () => {
    const explanation = explain(dir, first[0] as number);
    const text = explanationText(explanation);
    expect(text.split('\n').every((line) => line.length <= 80)).toBe(true);
    const flat = text.replace(/\s+/g, ' ');
    for (const part of [
      'with 256 tokens in the cache of tiny-model, the keys of page 0 (tokens 0 to 127) in layer 0 went from q8 to rot4.',
      "Measured 1.29e-7 KLD/byte, below the bound of 2.00e-6 KLD/byte ('price').",
      'The bound of 2.00e-6 KLD/byte has not moved since the session began. It was learned from earlier sessions: median of three sessions.',
      'It rests on 12 earlier sessions (entries 3, 5, 8).',
      'The sessions most like this one were older (distance 0.25, entry 3).',
      'was: rot4 0.02, rot3 0.04, rot2 0.08.',
      'The predicted divergence is 0.0016 KLD for 12.13 KiB, or 1.29e-7 KLD per byte.',
      'The cache went from 300,000 to 287,584 bytes: 12,416 freed, as planned.',
      'The cache held 256 tokens of 1,024 expected in 293 KiB, 75% of its budget of 390.6 KiB, and the next pages needed 99 KiB (entry 2).',
      'The plan had 4 moves, of which 0 were refused.',
      'rot3: 9.625 KiB, ε 0.04, predicted divergence 0.0064.',
      'Nothing was decided about this page before.',
      `${first[1]}: values q8 to rot4 at 256 tokens`,
    ]) {
      expect(flat).toContain(part);
    }
    expect(explanation).toMatchObject({
      id: first[0],
      tokenFirst: 0,
      tokenLast: 127,
      model: 'tiny-model',
      policy: 'tiny',
      neighbours: [{ session: 'older' }],
      trial: { report: { page: 0 } },
      before: [],
    });
  });

  it('tells a refused move, and that it was tried again', async () => {
    const [row] = await openLogQuery(dir).decisions({ session: 'first', accepted: false });
    const explanation = explain(dir, row!.seq);
    const flat = explanationText(explanation).replace(/\s+/g, ' ');
    expect(flat).toContain(`were to go from q8 to rot4 and stayed in q8: refused.`);
    expect(flat).toContain("Refused under rule 'retried'. Measured");
    expect(flat).toContain('above the bound of');
    expect(flat).toContain('bytes; the move would have freed 12,416.');
    expect(flat).toContain('Tried again just before the move, on the newest queries: ε');
    expect(explanation.situation).toMatchObject({ planned: 4 });
  });

  // Policies that try nothing still see pages leave the window; a budget is exceeded by a share that nobody counts in
  // 'share'.
  it('tells a move without a trial, and shares as percent of the budget', async () => {
    const other = folder();
    const log = await openWitnessLog({ dir: other, clock: () => START_MS });
    const [seq] = recordSession(log, 'untried', {
      situations: 1,
      policy: untried(),
    });
    await log.close();
    const flat = explanationText(explain(other, seq!)).replace(/\s+/g, ' ');
    expect(flat).toContain('trial None: this policy moves pages without trying them first.');
    expect(flat).toContain("This needs 100.7% of the budget, above the bound of 100% ('pressure.critical').");
    expect(flat).toContain('otherwise No other format of this page was tried.');
    expect(flat).not.toMatch(/share|ε|undefined|is ,/);
  });

  it('refuses what is no decision', () => {
    const codeOf = (seq: number): string => {
      try {
        explain(dir, seq);
      } catch (error) {
        return (error as KvError).code;
      }
      return 'no error';
    };
    expect([codeOf(0), codeOf(99_999), codeOf(-1)]).toEqual(['bad-argument', 'not-found', 'bad-argument']);
  });
});

describe('what a person types', () => {
  it('times', () => {
    const now = Date.UTC(2026, 5, 1);
    expect(parseTime('90s', now)).toBe(now - 90_000);
    expect(parseTime('1.5h', now)).toBe(now - 5_400_000);
    expect(parseTime('2d', now)).toBe(now - 172_800_000);
    expect(parseTime('2026-01-31T13:05:00Z', now)).toBe(START_MS);
    expect(parseTime('2026-01-31T14:05+01:00', now)).toBe(START_MS);
    expect(parseTime('2026-01-31', now)).toBe(new Date(2026, 0, 31).getTime());
    for (const bad of ['', 'yesterday', '1y', '2026-13-01', '2026-01-31T25:00', '-1h', '5'])
      expect(() => parseTime(bad, now)).toThrowError(/is not a time/);
  });

  it('ranges', () => {
    expect(parseRange('384')).toEqual({ min: 384, max: 384 });
    expect(parseRange('100..200')).toEqual({ min: 100, max: 200 });
    expect(parseRange('100..')).toEqual({ min: 100 });
    expect(parseRange('..200')).toEqual({ max: 200 });
    for (const bad of ['', '..', '-1', '1-2', '2..1', 'x', '1...2', '1.5'])
      expect(() => parseRange(bad)).toThrowError(/is not a range/);
  });
});
