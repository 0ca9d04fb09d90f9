/**
 * `npm run evaluate -- faults`: what is planted in a session is told after how many tokens, by what, and costs how much
 * beside a session that was told nothing. Without a fault, whatever is told is a false alarm.
 */
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { printOf } from '../../engine/cache/fingerprint.ts';
import type { SessionOptions } from '../../engine/options/types.ts';
import { leave, setupOf } from '../../engine/session/experience.ts';
import { Session } from '../../engine/session/session.ts';
import { logDir, openState, type State } from '../../engine/state/folder.ts';
import type { Runtime } from '../../engine/transformer/runtime/runtime.ts';
import type { QdrantOptions } from '../../memory/index.ts';
import { KvError, nativeInfo } from '../../native/index.ts';
import {
  type Course,
  createPolicy,
  defaultThresholds,
  type LayerChange,
  type Policy,
  regionIn,
  type ThresholdSet,
} from '../../policy/index.ts';
import { type Entry, readLog } from '../../witness/index.ts';
import { modelOf } from './frontier.ts';
import { widened } from './latents.ts';
import { type Passage, passagesOf } from './passages.ts';
import { damage, damageLatent, misled, wrongCourse, wrongLaw } from './plants.ts';
import { geometricMean, Results } from './results.ts';
import { Scorer } from './score.ts';
import { type Noticed, type Watch, watched } from './watched.ts';

/** One session with a fault, or with none. */
export interface FaultRow {
  readonly model: string;
  readonly text: string;
  readonly tokens: number;
  readonly fault: string;
  /** Divergence over that of a session that was told nothing; null: there was nothing to plant it in. */
  readonly cost: number | null;
  /** Tokens behind the fault until a layer was told not to be as it should; null: none was. */
  readonly after: number | null;
  /** What told it. */
  readonly by: LayerChange['source'] | null;
  /** Most tokens at a stretch for which a layer was trusted. */
  readonly trusted: number;
}

export interface FaultRequest {
  readonly models: readonly string[];
  readonly faults: readonly string[];
  readonly kinds: readonly string[];
  readonly passages: number;
  readonly tokens: number;
  /** A Qdrant server for what comes from a neighbour; null: that is left out. */
  readonly qdrantUrl: string | null;
  readonly dense: 'auto' | 'exact';
  readonly threads: number | undefined;
  readonly cacheDir: string;
  readonly json: string | null;
  readonly say: (line: string) => void;
}

export const FAULTS = [
  'none',
  'law',
  'course',
  'neighbour',
  'topic',
  'codes',
  'mended',
  'latent',
  'latent-mended',
  'trials',
] as const;
type Fault = (typeof FAULTS)[number];

/** A server that is busy is asked so often, with a pause. */
const ASKED_MOST = 30;
const PAUSE_MS = 500;
const SCORED = 512;
const PLANTED = 0.625;
/** What is to be told is told within so many tokens, and costs at most so much. */
const TOLD_WITHIN = 256;
const COST_MOST = 1.1;
const within = { kvBudget: '25%', compareTokens: SCORED } as const;

interface Bench {
  readonly model: string;
  readonly runtime: Runtime;
  readonly scorer: Scorer;
  readonly passage: Passage;
  /** A passage of another kind, or of the same where there is one kind. */
  readonly other: Passage;
  readonly qdrant: QdrantOptions | null;
}

interface Read {
  readonly kld: number;
  readonly changes: readonly Noticed[];
  readonly trusted: number;
  readonly course: Course | null;
  /** False where there was nothing to plant the fault in. */
  readonly isPlanted: boolean;
}

interface Ways {
  readonly thresholds?: ThresholdSet;
  readonly options?: SessionOptions;
  readonly policy?: Policy;
  readonly state?: State;
  /** Done at `middle`. → false: there was nothing to do it to */
  readonly plant?: (session: Session) => boolean;
}

/** Where something is planted: behind that the budget binds, and moves are made. */
const middle = ({ ids }: Passage): number => Math.floor(PLANTED * ids.length);

/** Reads a passage within a quarter of f16; what the policy says of layers is noted. */
async function read({ runtime, scorer }: Bench, passage: Passage, ways: Ways = {}): Promise<Read> {
  const { policy = createPolicy('price'), state, plant, thresholds } = ways;
  const { ids } = passage;
  const known = thresholds ?? (state === undefined ? defaultThresholds(runtime.shape.layers) : undefined);
  const options: SessionOptions = {
    ...{ ...within, tokensExpected: ids.length, ...ways.options },
    ...(known === undefined ? {} : { thresholds: known }),
  };
  const setup = await setupOf(runtime, options, { book: state?.book ?? null, log: null });
  const changes: Noticed[] = [];
  const trust = new Trust(runtime.shape.layers);
  const watch: Watch = {
    noticed: (change) => changes.push(change),
    seen: (states, tokens) => trust.see(states, tokens),
  };
  const session = Session.open(runtime, { ...setup, policy: watched(policy, watch) });
  try {
    await session.read(ids.slice(0, middle(passage)));
    const isPlanted = plant?.(session) ?? (state === undefined || setup.thresholds.course !== undefined);
    await session.read(ids.slice(middle(passage)));
    const { meanKld: kld } = await scorer.against(passage, session.hiddenRows());
    return { kld, changes, trusted: trust.longest, course: session.governed.policy.course?.() ?? null, isPlanted };
  } finally {
    session.close();
  }
}

/** For how long layers are trusted at a stretch. */
class Trust {
  longest = 0;
  readonly #since: (number | null)[];

  constructor(layers: number) {
    this.#since = new Array<number | null>(layers).fill(null);
  }

  see(states: readonly string[], tokens: number): void {
    for (const [layer, state] of states.entries()) {
      if (!state.endsWith('/trusted')) this.#since[layer] = null;
      else this.longest = Math.max(this.longest, tokens - (this.#since[layer] ??= tokens));
    }
  }
}

/** A session with the fault, what it is compared with, and the tokens where it begins. */
interface Pair {
  readonly with: Read;
  readonly without: Read;
  readonly from: number;
}

/** null: the fault needs a server, and none was named. */
async function pairOf(fault: Fault, bench: Bench, sound: Read): Promise<Pair | null> {
  const { passage, runtime } = bench;
  const { layers } = runtime.shape;
  const set = defaultThresholds(layers);
  const plain = async (ways: Ways, from = 0): Promise<Pair> => ({
    with: await read(bench, passage, ways),
    without: sound,
    from,
  });
  const plant = (session: Session): boolean =>
    Array.from({ length: layers }).some((_, layer) => damage(session, [layer]).length > 0);
  switch (fault) {
    case 'none':
      return { with: sound, without: sound, from: 0 };
    case 'law':
      return plain({ thresholds: wrongLaw(set, layers) });
    case 'course':
      return plain({ thresholds: { ...set, course: wrongCourse(sound.course!) } });
    case 'neighbour':
      return neighbour(bench);
    case 'topic':
      return topic(bench, sound);
    case 'codes':
      return plain({ plant }, middle(passage));
    case 'mended':
      return plain({ plant, options: { originals: 'memory' } }, middle(passage));
    case 'latent':
      return latent(bench);
    case 'latent-mended':
      return latent(bench, { originals: 'memory' });
    case 'trials':
      return plain({ policy: misled(createPolicy('price')) });
  }
}

/** A page is held as the latent of another one from the middle on, in a model whose pages become latents. */
async function latent(bench: Bench, more: SessionOptions = {}): Promise<Pair> {
  const { passage } = bench;
  const runtime = widened(bench.runtime);
  const wide = { ...bench, runtime, scorer: new Scorer(runtime) };
  const options = { latents: 'xq4', ...more } as const;
  const without = await read(wide, passage, { options });
  return { with: await read(wide, passage, { options, plant: damageLatent }), without, from: middle(passage) };
}

/** The text is about something else from its middle on, and the session was taught by what it was about before. */
async function topic(bench: Bench, sound: Read): Promise<Pair> {
  const { passage, other } = bench;
  const ids = [...passage.ids.slice(0, middle(passage)), ...other.ids.slice(middle(passage))];
  const mixed: Passage = { text: `${passage.text}, ${other.text}`, kind: passage.kind, ids };
  const without = await read(bench, mixed);
  const course = sound.course!;
  const taught = { ...defaultThresholds(bench.runtime.shape.layers), course };
  return { with: await read(bench, mixed, { thresholds: taught }), without, from: middle(passage) };
}

/** Another machine leaves on a server that errors never last, and the session finds it there as its nearest. */
async function neighbour(bench: Bench): Promise<Pair | null> {
  const { runtime, passage, qdrant } = bench;
  if (qdrant === null) return null;
  const dir = mkdtempSync(join(tmpdir(), 'palimpsest-faults-'));
  try {
    const there = await openState(join(dir, 'there'), { mode: 'block', qdrant });
    try {
      await leaveWrong(runtime, passage, there);
    } finally {
      await there.close();
    }
    const [alone, here] = [
      await openState(join(dir, 'alone'), { mode: 'block' }),
      await openState(join(dir, 'here'), { mode: 'block', qdrant }),
    ];
    try {
      const print = printOf(runtime.shape, passage.ids.length, null);
      await until(async () => (await here.book.nearestSessions(print, 1)).length > 0);
      const without = await read(bench, passage, { state: alone });
      return { with: await read(bench, passage, { state: here }), without, from: 0 };
    } finally {
      await alone.close();
      await here.close();
    }
  } finally {
    rmSync(dir, { recursive: true, force: true });
  }
}

/** Asks again until it is so. Throws 'io' where it never is. */
async function until(isSo: () => Promise<boolean>): Promise<void> {
  for (let times = 0; times < ASKED_MOST; times++) {
    if (await isSo()) return;
    await new Promise((resolve) => setTimeout(resolve, PAUSE_MS));
  }
  throw new KvError('io', 'the Qdrant server does not keep what it is sent', {
    hint: 'look at its log, or leave the fault out',
  });
}

async function leaveWrong(runtime: Runtime, { ids }: Passage, { log, book, dir }: State): Promise<void> {
  const options = { ...within, tokensExpected: ids.length };
  const session = Session.open(runtime, await setupOf(runtime, options, { book, log }));
  try {
    await session.read(ids);
    await leave(session.governed, null, 'done');
    await log.flush();
    const [open, close] = [...readLog(logDir(dir), { session: session.id, kinds: ['open', 'close'] })];
    const { body } = close as Entry<'close'>;
    const wrong = { ...close!, body: { ...body, course: wrongCourse(body.course!) } } as Entry<'close'>;
    // A book waits a second at most for its server, which may just be making the collection.
    await until(async () => {
      await book.record(open!, wrong);
      return book.status.shared?.waiting === 0;
    });
  } finally {
    session.close();
  }
}

const keyOf = ({ model, text, tokens, fault }: Omit<FaultRow, 'cost' | 'after' | 'by' | 'trusted'>): string =>
  [model, text, tokens, fault].join(' | ');

/** Computes the rows that the file lacks. → all rows of the file */
export async function faults(request: FaultRequest): Promise<readonly FaultRow[]> {
  const { dense, json, kinds, qdrantUrl, tokens } = request;
  // Sessions of one run find all that lied in it before, nearest first.
  const collection = `faults-${process.pid}-${Date.now()}`;
  const qdrant = qdrantUrl === null ? null : { url: qdrantUrl, collection };
  const results = Results.open<FaultRow>(json, { kind: 'faults', isa: nativeInfo().isa, dense }, keyOf);
  for (const model of request.models) {
    const { runtime, own } = await modelOf(model, request);
    try {
      const scorer = new Scorer(runtime);
      const { tokenizer } = runtime.model;
      const passages = kinds.flatMap((kind) => passagesOf(tokenizer, kind, request.passages, tokens));
      for (const [at, passage] of passages.entries()) {
        const other = passages[(at + request.passages) % passages.length]!;
        await faultsOf({ model, runtime, scorer, passage, other, qdrant }, request, results);
      }
    } finally {
      await own.close();
    }
  }
  return results.rows;
}

async function faultsOf(bench: Bench, { faults: asked, say }: FaultRequest, results: Results<FaultRow>): Promise<void> {
  const { model, passage } = bench;
  const conditions = { model, text: passage.text, tokens: passage.ids.length };
  const left = FAULTS.filter(
    (fault) => asked.includes(fault) && results.find(keyOf({ ...conditions, fault })) === undefined,
  );
  if (left.length === 0) return;
  const sound = await read(bench, passage);
  for (const fault of left) {
    const pair = await pairOf(fault, bench, sound);
    if (pair === null) continue;
    const row: FaultRow = { ...conditions, fault, ...told(fault, pair) };
    results.add(row);
    say(
      `${keyOf(row)}: ${row.cost?.toFixed(2) ?? 'nothing planted'}, ${row.by === null ? 'not told' : `told by ${row.by} after ${row.after}`}, trusted for ${row.trusted}`,
    );
  }
}

/** A layer that leaves `healthy` behind the fault; of a course, one that is trusted no more. */
function told(fault: Fault, { with: read, without, from }: Pair): Pick<FaultRow, 'cost' | 'after' | 'by' | 'trusted'> {
  const isOfTrust = fault === 'course' || fault === 'neighbour';
  const first = read.changes.find(({ state, tokens }) => {
    const isUnsound = regionIn(state, 'quality') !== 'healthy';
    return tokens >= from && (isUnsound || (isOfTrust && regionIn(state, 'trust') === 'watched'));
  });
  return {
    cost: read.isPlanted ? read.kld / without.kld : null,
    after: first === undefined ? null : first.tokens - from,
    by: first?.source ?? null,
    trusted: read.trusted,
  };
}

/** By model and fault: how many were told in time, by what, what they cost, and for how long layers were trusted. */
export function faultTable(rows: readonly FaultRow[]): string {
  const lines = [
    `model | tokens | fault | sessions | told within ${TOLD_WITHIN} tokens | by | cost, geometric mean | worst | above ${COST_MOST} | trusted at most`,
  ];
  const groups = new Map<string, FaultRow[]>();
  for (const row of rows) {
    const name = `${row.model} | ${row.tokens} | ${row.fault}`;
    groups.set(name, [...(groups.get(name) ?? []), row]);
  }
  for (const [name, all] of groups) {
    const planted = all.filter(({ cost }) => cost !== null);
    if (planted.length === 0) continue;
    const costs = planted.map(({ cost }) => cost!);
    const inTime = planted.filter(({ after }) => after !== null && after <= TOLD_WITHIN);
    const by = [...new Set(planted.flatMap((row) => row.by ?? []))].join(', ') || 'nobody';
    const above = costs.filter((cost) => cost > COST_MOST).length;
    lines.push(
      [
        ...[name, planted.length, inTime.length, by, geometricMean(costs).toFixed(2), Math.max(...costs).toFixed(2)],
        ...[above, Math.max(...planted.map(({ trusted }) => trusted))],
      ].join(' | '),
    );
  }
  return `${lines.join('\n')}\n`;
}
