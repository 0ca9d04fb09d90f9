/**
 * `npm run evaluate -- [command] [words] [flags]`, with SmolLM2 and the texts that evaluation-windows.json lists, which
 * `npm run fetch:texts` brings.
 *   (none)     the quality table of the README: parts fixed, policies, recall
 *   learning   what experience is worth: parts bytes, curve, questions, ablations; with the word experience the rows of
 *   that command, and those of sessions that began alike
 *   stated     whether a stated divergence is kept and used
 *   faults     what is planted in sessions: when it is told, and what it costs
 *   machine    which arrows of the machines sessions take, and what they are without the machine of a layer
 *   harm       the divergence of price beside that of uniform, on the models of --models and texts, within --budgets
 *   promotion  what pages that come back for an answer are worth, by how likely the codes of recall documents are
 *   prefix     what sessions are worth that began with the same two documents and were asked something else
 *   experience what a model of which nobody calibrated a law gets from sessions on other kinds of text, on the models
 *   of --models
 *   pool       how eight conversations share one budget, by policies of the pool and in fixed shares, on the models of
 *   --models
 *   latents    what latents are worth in SmolLM2 with a KV head for each query head
 *   proposals  how often the right adapter is proposed by what sessions on texts of its kind used, on the models of
 *   --models, with --sessions of each kind
 *   packs      what pages in the codec of a kernel pack are worth at equal bytes
 *   frontier   every format, policy, eviction rule and published method, on several models and contexts: parts quality,
 *   recall, speed, short
 *              (chunks of 128 + 64 tokens), course (divergence and bytes along a text), latency (decode steps), refresh
 *   (what comes back when pages are made again)
 *   decide     of the rows of frontier in the file of --json, the best pair of formats for each kind of model:
 *   scripts/decisions.json
 *   sizes      what caches of models that do not fit here would take, by --shapes, --contexts and --batch; loads no
 *   model
 * The words select kinds of text (wiki, novel, german, code and, in learning, stories and recall: documents with
 * codes), lengths (2048, 4096) and parts; without a word of one of these sorts, all of that sort are computed.
 * docs/evaluation.md says how long that takes.
 *   --windows N      passages of each kind, 2 by default
 *   --dense KIND     exact: weights in float32, so that nothing but the cache differs (default of the table); auto:
 *    quantized ones as in the file, others in 8 bits,
 *                    which is faster and the same in both runs that are compared (default of learning and stated)
 *   --caches LIST    these caches instead of those of the table
 *   --budgets LIST   these budgets instead of those of learning, e.g. 25%,kld:0.01
 *   --sessions LIST  points of the learning curve, 0,1,3,10,30 by default; of prefix 0,1,5,20, of experience
 *    1,3,10
 *   --qdrant-url URL a Qdrant server, through which faults come from a neighbour
 *   --apart          prefix: also with the course of errors alone, what was asked alone, and neither of them;
 *    experience: with the course alone and with coefficients alone
 *   --alike N        experience: also after N sessions that began with the same two documents (5 in `learning
 *    experience`)
 *   --asked LIST     divergences to be stated
 *   --probe N        tokens that probes for the table in hindsight read, 256 by default; 0: no such table
 *   --documents N    recall documents of learning, with five questions each, 20 by default
 *   --state DIR      stated: the state folder to start from
 *   --reread N       stated: sessions keep originals in memory, and of every N tokens some are read twice over them
 *   --doubled        stated: they keep none, and errors are doubled where tokens are read twice
 *   --model NAME     another model
 *   --models LIST    frontier: these models; NAME+outliers is one with outlier channels in its keys, NAME+mha one with
 *    a KV head for each query head
 *   --contexts LIST  frontier: these numbers of tokens, 512,2048,4096,8192 by default
 *   --depths LIST    frontier: where the codes of recall documents stand, 0.1,0.3,0.5,0.7,0.9 by default
 *   --promote LIST   promotion: pages of each layer that come back, 0,2,4,8,16 by default
 *   --beside         promotion: what stays free for them is given beside the budget
 *   --seeds LIST     promotion: seeds of the documents, 0,1 by default
 *   --shapes LIST    sizes: names such as Llama-2-70B, or layers and heads as in 80:64/8x128
 *   --batch N        sizes: sequences, 1 by default
 *   --html FILE      frontier: draws all rows of the file as a page
 *   --markdown FILE  frontier: writes them as a table
 *   --threads N
 *   --json FILE      writes the rows to this file; learning and stated go on from what stands there, and learning keeps
 *    its state folders in FILE.states
 */
import { cpus } from 'node:os';
import { join } from 'node:path';
import { parseArgs } from 'node:util';
import { DEPTHS } from '../../engine/evaluate/recall.ts';
import { defaultCacheDir } from '../../engine/transformer/cache-dir.ts';
import { Runtime } from '../../engine/transformer/runtime/runtime.ts';
import { KvError, replaceFile } from '../../native/index.ts';
import { SHORT_CHUNKS } from './courses.ts';
import { decide } from './decide.ts';
import { everyCache } from './every-cache.ts';
import { EXPERIENCE_BUDGETS, EXPERIENCE_SESSIONS, experience, experienceTable } from './experience.ts';
import { FAULTS, faults, faultTable } from './faults.ts';
import { FRONTIER_CONTEXTS, FRONTIER_PARTS, frontier } from './frontier.ts';
import { frontierPage } from './frontier-page.ts';
import { frontierTable } from './frontier-table.ts';
import { HARM_BUDGETS, harm, ratios } from './harm.ts';
import { latents } from './latents.ts';
import { learning, PARTS } from './learning.ts';
import { MACHINE_PARTS, machine } from './machine.ts';
import { OUTLIERS } from './outliers.ts';
import { PACK_BUDGETS, packs } from './packs.ts';
import { CHRONICLE, KINDS, WINDOWS } from './passages.ts';
import { POOL_BUDGETS, POOL_SHARINGS, pool, poolTable } from './pool.ts';
import { PREFIX_BUDGETS, PREFIX_SESSIONS, prefix } from './prefix.ts';
import { PROMOTED_PAGES, promotion } from './promotion.ts';
import { PROPOSAL_SESSIONS, proposals, proposalTable } from './proposals.ts';
import { MODEL_SHAPES, modelShape, SIZE_CONTEXTS, sizeTables } from './sizes.ts';
import { ASKED, stated } from './stated.ts';
import { qualityTables, TABLE_PARTS } from './table.ts';

const COMMANDS = [
  'learning',
  'stated',
  'latents',
  'proposals',
  'packs',
  'harm',
  'machine',
  'faults',
  'promotion',
  'prefix',
  'experience',
  'pool',
  'frontier',
  'decide',
  'sizes',
];
/** Budgets at which latents are compared. */
const LATENT_BUDGETS = ['10%', '12.5%', '15%', '20%'];
const TABLE_KINDS = ['wiki', 'novel', 'german', 'code'];
const KINDS_OF_FRONTIER = [...TABLE_KINDS, CHRONICLE];
const MODELS = ['smollm2-135m', 'reference', `reference${OUTLIERS}`];
const LENGTHS = ['2048', '4096'];
/** Points of the learning curve. */
const SESSIONS = [0, 1, 3, 10, 30];

/** Sessions that began alike, in `learning experience`. */
const ALIKE_SESSIONS = 5;

const say = (line: string): void => void process.stderr.write(`${line}\n`);

const OPTIONS = {
  windows: { type: 'string', default: '2' },
  dense: { type: 'string' },
  caches: { type: 'string' },
  budgets: { type: 'string' },
  sessions: { type: 'string' },
  apart: { type: 'boolean', default: false },
  alike: { type: 'string' },
  asked: { type: 'string' },
  probe: { type: 'string', default: '256' },
  documents: { type: 'string' },
  state: { type: 'string' },
  reread: { type: 'string', default: '0' },
  doubled: { type: 'boolean', default: false },
  model: { type: 'string', default: 'smollm2-135m' },
  models: { type: 'string' },
  contexts: { type: 'string' },
  shapes: { type: 'string' },
  batch: { type: 'string', default: '1' },
  depths: { type: 'string' },
  promote: { type: 'string' },
  beside: { type: 'boolean', default: false },
  seeds: { type: 'string' },
  'qdrant-url': { type: 'string' },
  html: { type: 'string' },
  markdown: { type: 'string' },
  threads: { type: 'string' },
  json: { type: 'string' },
} as const;

const list = (text: string | undefined): string[] | null => text?.split(',') ?? null;

/** What was asked on the command line. Throws 'bad-argument'. */
function asked() {
  const { values, positionals: words } = parseArgs({ allowPositionals: true, options: OPTIONS });
  const command = words.find((word) => COMMANDS.includes(word)) ?? 'table';
  const known = [
    ...COMMANDS,
    ...KINDS,
    CHRONICLE,
    ...LENGTHS,
    ...TABLE_PARTS,
    ...PARTS,
    ...MACHINE_PARTS,
    ...FAULTS,
    ...FRONTIER_PARTS,
  ];
  const unknown = words.find((word) => !known.includes(word));
  if (unknown !== undefined)
    throw new KvError('bad-argument', `evaluate knows no '${unknown}'`, { hint: `one of ${known.join(', ')}` });
  const selected = (names: readonly string[]): readonly string[] => {
    const named = names.filter((name) => words.includes(name));
    return named.length > 0 ? named : names;
  };
  const dense = (values.dense ?? (command === 'table' ? 'exact' : 'auto')) as 'auto' | 'exact';
  if (dense !== 'auto' && dense !== 'exact')
    throw new KvError('bad-argument', `--dense is auto or exact, not ${String(dense)}`);
  return {
    command,
    words,
    values,
    selected,
    dense,
    threads: values.threads === undefined ? undefined : Number(values.threads),
    lengths: selected(LENGTHS).map(Number),
    passages: Number(values.windows),
    json: values.json ?? null,
    cacheDir: defaultCacheDir(),
  };
}

type Asked = ReturnType<typeof asked>;

async function main(): Promise<void> {
  const all = asked();
  if (all.command === 'sizes') tellSizes(all);
  else if (all.command === 'decide') await tellDecisions(all);
  else if (all.command === 'frontier') await tellFrontier(all);
  else if (all.command === 'harm') await tellHarm(all);
  else if (isExperience(all)) await tellExperience(all);
  else if (all.command === 'pool') await tellPool(all);
  else if (all.command === 'proposals') await tellProposals(all);
  else if (all.command === 'machine') await tellMachine(all);
  else if (all.command === 'faults') await tellFaults(all);
  else await measureModel(all);
}

/** `learning experience` asks for it as well, with sessions that begin alike. */
const isExperience = ({ command, words }: Asked): boolean =>
  command === 'experience' || (command === 'learning' && words.includes('experience'));

function tellSizes({ values }: Asked): void {
  const shapes = list(values.shapes)?.map(modelShape) ?? MODEL_SHAPES;
  process.stdout.write(sizeTables(shapes, list(values.contexts)?.map(Number) ?? SIZE_CONTEXTS, Number(values.batch)));
}

async function tellDecisions({ json, cacheDir }: Asked): Promise<void> {
  if (json === null)
    throw new KvError('bad-argument', 'decide reads rows of frontier', { hint: 'name their file: --json FILE' });
  const decisions = await decide(json, cacheDir);
  process.stdout.write(`${decisions.length} rows in scripts/decisions.json; npm run generate takes them over\n`);
}

async function tellFrontier({
  values,
  words,
  selected,
  passages,
  dense,
  threads,
  cacheDir,
  json,
}: Asked): Promise<void> {
  const named = KINDS_OF_FRONTIER.filter((kind) => words.includes(kind));
  const rows = await frontier({
    models: list(values.models) ?? MODELS,
    contexts: list(values.contexts)?.map(Number) ?? FRONTIER_CONTEXTS,
    caches: list(values.caches) ?? everyCache(),
    parts: selected(FRONTIER_PARTS),
    kinds: named.length > 0 ? named : TABLE_KINDS,
    passages,
    documents: Number(values.documents ?? 2),
    chunks: SHORT_CHUNKS,
    depths: list(values.depths)?.map(Number) ?? DEPTHS,
    dense,
    threads,
    cacheDir,
    json,
    say,
  });
  const table = frontierTable(rows);
  if (values.markdown !== undefined) replaceFile(values.markdown, Buffer.from(table));
  if (values.html !== undefined) replaceFile(values.html, Buffer.from(frontierPage(rows)));
  process.stdout.write(table);
}

async function tellHarm({ values, selected, lengths, passages, dense, threads, cacheDir, json }: Asked): Promise<void> {
  const rows = await harm({
    models: list(values.models) ?? MODELS,
    kinds: selected(TABLE_KINDS),
    passages,
    budgets: list(values.budgets) ?? HARM_BUDGETS,
    tokens: lengths[0]!,
    dense,
    threads,
    cacheDir,
    json,
    say,
  });
  process.stdout.write(ratios(rows));
}

async function tellExperience(all: Asked): Promise<void> {
  const { command, values, selected, lengths, passages, dense, threads, cacheDir, json } = all;
  const rows = await experience({
    models: list(values.models) ?? ['smollm2-135m', 'reference'],
    kinds: selected(TABLE_KINDS),
    passages,
    budgets: list(values.budgets) ?? EXPERIENCE_BUDGETS,
    tokens: lengths[0]!,
    sessions: list(values.sessions)?.map(Number) ?? EXPERIENCE_SESSIONS,
    isApart: values.apart,
    alike: Number(values.alike ?? (command === 'learning' ? ALIKE_SESSIONS : 0)),
    dense,
    threads,
    cacheDir,
    json,
    say,
  });
  process.stdout.write(experienceTable(rows));
}

async function tellPool({ values, selected, lengths, dense, threads, cacheDir, json }: Asked): Promise<void> {
  const rows = await pool({
    models: list(values.models) ?? ['smollm2-135m', 'reference'],
    kinds: selected(TABLE_KINDS),
    budgets: list(values.budgets) ?? POOL_BUDGETS,
    sharings: list(values.caches) ?? POOL_SHARINGS,
    tokens: lengths[0]!,
    dense,
    threads,
    cacheDir,
    json,
    say,
  });
  process.stdout.write(poolTable(rows));
}

async function tellProposals({ values, words, threads, cacheDir, json }: Asked): Promise<void> {
  const named = KINDS.filter((kind) => words.includes(kind));
  const rows = await proposals({
    models: list(values.models) ?? ['smollm2-135m', 'reference'],
    kinds: named.length > 0 ? named : KINDS,
    sessions: Number(list(values.sessions)?.[0] ?? PROPOSAL_SESSIONS),
    ...{ threads, cacheDir, say },
  });
  if (json !== null) replaceFile(json, Buffer.from(`${JSON.stringify(rows, null, 1)}\n`));
  process.stdout.write(proposalTable(rows));
}

async function tellMachine(all: Asked): Promise<void> {
  const { values, words, selected, lengths, passages, dense, threads, cacheDir, json } = all;
  const named = KINDS_OF_FRONTIER.filter((kind) => words.includes(kind));
  const kinds = named.length > 0 ? named : selected([CHRONICLE]);
  const models = list(values.models) ?? ['smollm2-135m', 'reference'];
  const tokens = lengths[0]!;
  process.stdout.write(
    await machine({
      models,
      parts: selected(MACHINE_PARTS),
      kinds,
      passages,
      tokens,
      dense,
      threads,
      cacheDir,
      json,
      say,
    }),
  );
}

async function tellFaults(all: Asked): Promise<void> {
  const { values, words, selected, lengths, passages, dense, threads, cacheDir, json } = all;
  const named = KINDS_OF_FRONTIER.filter((kind) => words.includes(kind));
  const rows = await faults({
    models: list(values.models) ?? ['smollm2-135m', 'reference'],
    faults: selected(FAULTS),
    kinds: named.length > 0 ? named : TABLE_KINDS,
    qdrantUrl: values['qdrant-url'] ?? null,
    tokens: lengths[0]!,
    ...{ passages, dense, threads, cacheDir, json, say },
  });
  process.stdout.write(faultTable(rows));
}

/** What runs one model. */
async function measureModel(all: Asked): Promise<void> {
  const { values, dense, threads, cacheDir } = all;
  const runtime = await Runtime.open({ model: values.model, dense, threads, cacheDir });
  process.stdout.write(
    `${runtime.model.name}, ${runtime.dense.name} (weights ${dense}), ${runtime.native.isa}, ${runtime.threads} threads, ${cpus()[0]?.model}, node ${process.version}, ${runtime.native.compiler}\n`,
  );
  try {
    await (all.command === 'packs' ? tellPacks : measure)(runtime, all);
  } finally {
    await runtime.close();
  }
}

async function tellPacks(runtime: Runtime, { values, selected, dense, lengths, passages, json }: Asked): Promise<void> {
  const [budgets, kinds] = [list(values.budgets) ?? PACK_BUDGETS, selected(TABLE_KINDS)];
  process.stdout.write(await packs({ runtime, dense, json, kinds, lengths, budgets, passages, say }));
}

async function measure(
  runtime: Runtime,
  { command, values, selected, dense, lengths, passages, json, cacheDir }: Asked,
): Promise<void> {
  if (command === 'learning') {
    await learning({
      school: { runtime, dense, cacheDir, dir: `${json ?? join(cacheDir, 'learning')}.states`, say },
      json,
      parts: selected(PARTS),
      kinds: selected(KINDS),
      lengths,
      budgets: list(values.budgets),
      sessions: list(values.sessions)?.map(Number) ?? SESSIONS,
      passages,
      probedTokens: Number(values.probe),
      recallDocuments: Number(values.documents ?? WINDOWS.recall.documents),
    });
  } else if (command === 'stated') {
    await stated({
      runtime,
      dense,
      json,
      kinds: selected(TABLE_KINDS),
      lengths,
      asked: list(values.asked)?.map(Number) ?? ASKED,
      passages,
      stateDir: values.state ?? null,
      reread: Number(values.reread),
      doubled: values.doubled,
      say,
    });
  } else if (command === 'promotion') {
    process.stdout.write(
      await promotion({
        runtime,
        dense,
        json,
        caches: list(values.caches) ?? ['price@13.75%'],
        contexts: lengths,
        kinds: selected(TABLE_KINDS),
        documents: list(values.seeds)?.map(Number) ?? [0, 1],
        isBeside: values.beside,
        pages: list(values.promote)?.map(Number) ?? PROMOTED_PAGES,
        say,
      }),
    );
  } else if (command === 'prefix') {
    process.stdout.write(
      await prefix({
        runtime,
        dense,
        cacheDir,
        kinds: selected(TABLE_KINDS),
        tokens: Math.min(lengths[0]!, runtime.model.config.contextLength),
        budgets: list(values.budgets) ?? PREFIX_BUDGETS,
        sessions: list(values.sessions)?.map(Number) ?? PREFIX_SESSIONS,
        isApart: values.apart,
        say,
      }),
    );
  } else if (command === 'latents') {
    const budgets = list(values.budgets) ?? LATENT_BUDGETS;
    await latents({ runtime, dense, json, kinds: selected(TABLE_KINDS), lengths, budgets, passages, say });
  } else {
    const parts = selected(TABLE_PARTS);
    const kinds = selected(TABLE_KINDS);
    await qualityTables({ runtime, json, parts, kinds, lengths, windows: passages, caches: list(values.caches) });
  }
}

main().catch((error: unknown) => {
  if (!(error instanceof KvError)) throw error;
  process.stderr.write(`${error.message}${error.hint === undefined ? '' : `\n${error.hint}`}\n`);
  process.exitCode = 2;
});
