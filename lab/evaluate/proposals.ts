/**
 * `npm run evaluate -- proposals`: how often the session index proposes the right adapter. Sessions on each kind of
 * text have an adapter of that kind, and recall documents none; then each text is asked about as if its own session had
 * not been. What the adapters add does not matter here, so their numbers are drawn.
 */
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { type ProposalSource, proposalFor } from '../../engine/adapters/proposal.ts';
import { adapterWith } from '../../engine/adapters/read.ts';
import { AdapterRegistry } from '../../engine/adapters/registry.ts';
import { TextHelpers } from '../../engine/sidecar/hint.ts';
import { readBook } from '../../engine/state/folder.ts';
import { createEngine, type Engine } from '../../engine/thread/engine.ts';
import { expectedShapes } from '../../engine/transformer/config.ts';
import { loadModel } from '../../engine/transformer/load.ts';
import type { LoadedModel } from '../../engine/transformer/types.ts';
import type { ThresholdBook } from '../../memory/index.ts';
import { columnsOf, table } from '../../native/index.ts';
import { lessonOf, RECALL } from './passages.ts';

export const PROPOSAL_SESSIONS = 8;
/** Tokens that a session reads. */
const READ_TOKENS = 1024;
/** Tokens of a text that are known when it is asked about. */
const ASKED_TOKENS = [256, 512, 1024];

export interface ProposalRow {
  readonly model: string;
  readonly helpers: boolean;
  /** Tokens that are known of a text. */
  readonly asked: number;
  readonly kind: string;
  readonly texts: number;
  /** The adapter of the kind was proposed; of recall documents: that the model answers by itself. */
  readonly right: number;
  /** Nothing was proposed for want of evidence. */
  readonly none: number;
  readonly wrong: number;
}

export interface ProposalRequest {
  readonly models: readonly string[];
  readonly kinds: readonly string[];
  readonly sessions: number;
  readonly threads: number | undefined;
  readonly cacheDir: string;
  readonly say: (line: string) => void;
}

/** Adapters by kind, the digest of each by its kind. */
function register(stateDir: string, model: LoadedModel, kinds: readonly string[]): Map<string, string> {
  const registry = new AdapterRegistry(stateDir);
  const [outputs = 0, inputs = 0] = expectedShapes(model.config).get('0.q')!;
  const digests = new Map<string, string>();
  for (const [at, kind] of kinds.entries()) {
    const values = (count: number): Float32Array =>
      Float32Array.from({ length: count }, (_, i) => ((i * 7 + at) % 11) / 1e4);
    const added = [{ layer: 0, slot: 'q', rank: 1, a: values(inputs), b: values(outputs) }] as const;
    digests.set(kind, registry.add(kind, adapterWith('PEFT', added), model).digest);
  }
  return digests;
}

type Source = ProposalSource & { readonly book: ThresholdBook };

interface Lesson {
  readonly kind: string;
  readonly ids: readonly number[];
  readonly session: string;
}

async function teach(engine: Engine, kind: string, ids: readonly number[]): Promise<Lesson> {
  const adapters = kind === RECALL ? [] : [{ name: kind }];
  const session = await engine.openSession({ adapters, tokensExpected: READ_TOKENS + 1 });
  await session.read(ids);
  await session.close();
  return { kind, ids, session: session.id };
}

/** As if the session of the lesson had not been. */
async function ask(source: Source, lesson: Lesson, tokens: number, digests: ReadonlyMap<string, string>) {
  const book: ProposalSource['book'] = {
    precedents: async (query) => {
      const near = await source.book.precedents({ ...query, k: query.k + 1 });
      return near.filter(({ session }) => session !== lesson.session).slice(0, query.k);
    },
  };
  const { adapters, because } = await proposalFor({ ...source, book }, lesson.ids.slice(0, tokens));
  if (because.rule === 'proposal-divided' || because.rule === 'proposal-evidence') return 'none';
  return adapters[0]?.digest === digests.get(lesson.kind) ? 'right' : 'wrong';
}

/** Of one model, with or without helpers. */
async function rowsOf(
  model: string,
  helpers: boolean,
  { kinds, sessions, threads, cacheDir, say }: ProposalRequest,
): Promise<ProposalRow[]> {
  const stateDir = mkdtempSync(join(tmpdir(), 'palimpsest-proposals-'));
  const loaded = await loadModel(model, { cacheDir });
  const digests = register(
    stateDir,
    loaded,
    kinds.filter((kind) => kind !== RECALL),
  );
  const texts = kinds.flatMap((kind) =>
    Array.from({ length: sessions }, (_, n) => ({ kind, ids: lessonOf(loaded.tokenizer, kind, n, READ_TOKENS) })),
  );
  const engine = await createEngine({
    ...{ model, stateDir, helpers, cacheDir },
    ...(threads === undefined ? {} : { threads }),
  });
  const lessons: Lesson[] = [];
  try {
    for (const { kind, ids } of texts) {
      lessons.push(await teach(engine, kind, ids));
      say(`${model}: read ${lessons.length} of ${texts.length}${helpers ? ', with helpers' : ''}`);
    }
  } finally {
    await engine.close();
  }
  const [book, hints] = [await readBook(stateDir), helpers ? new TextHelpers() : null];
  try {
    const { layers, queryHeads, kvHeads, headDim } = loaded.config;
    const shape = { layers, queryHeads, kvHeads, headDim };
    const hintOf = hints === null ? undefined : (text: Uint8Array) => hints.hintOf(text);
    const rows: ProposalRow[] = [];
    for (const asked of ASKED_TOKENS)
      for (const kind of kinds) {
        const counts = { right: 0, none: 0, wrong: 0 };
        const own = lessons.filter((lesson) => lesson.kind === kind);
        for (const lesson of own) counts[await ask({ model: loaded, shape, book, hintOf }, lesson, asked, digests)]++;
        rows.push({ model, helpers, asked, kind, texts: own.length, ...counts });
      }
    return rows;
  } finally {
    await hints?.close();
    await book.close();
    loaded.weights.close();
    rmSync(stateDir, { recursive: true });
  }
}

export async function proposals(request: ProposalRequest): Promise<ProposalRow[]> {
  const rows: ProposalRow[] = [];
  for (const model of request.models)
    for (const helpers of [false, true]) rows.push(...(await rowsOf(model, helpers, request)));
  return rows;
}

export function proposalTable(rows: readonly ProposalRow[]): string {
  const columns = [
    { title: 'model', align: 'left', value: (row: ProposalRow) => row.model },
    { title: 'helpers', align: 'left', value: (row: ProposalRow) => (row.helpers ? 'yes' : 'no') },
    { title: 'tokens known', value: (row: ProposalRow) => String(row.asked) },
    { title: 'text', align: 'left', value: (row: ProposalRow) => row.kind },
    { title: 'of', value: (row: ProposalRow) => String(row.texts) },
    { title: 'right', value: (row: ProposalRow) => String(row.right) },
    { title: 'none', value: (row: ProposalRow) => String(row.none) },
    { title: 'wrong', value: (row: ProposalRow) => String(row.wrong) },
  ] as const;
  return `${table(columns, rows, columnsOf(process.stdout))}\n`;
}
