/** Parses and checks the flags of the command. */
import { parseArgs } from 'node:util';
import { ISA_NAMES, type Isa, KvError } from '../../native/index.ts';
import { PARTS as AUDIT_PARTS } from './audit.ts';
import type { Settings } from './bench.ts';
import { PARTS as CROWD_PARTS, type Part as CrowdPart } from './crowd.ts';
import { MODELS, type ModelName } from './machines.ts';
import { INDEXES, type IndexName } from './retrieval.ts';
import { pairs, shapes } from './shapes.ts';

export interface Command {
  /** The names of the benches to run; all if it is empty. */
  readonly names: readonly string[];
  readonly settings: Settings;
  /** Null means that the bench chooses. All but machines and many take one. */
  readonly isas: readonly Isa[] | null;
  readonly json: string | null;
  readonly table: boolean;
  /** What retrieval measures. */
  readonly indexes: readonly IndexName[];
  /** What machines and many measure. */
  readonly models: readonly ModelName[];
  /** How many sequences many decodes together. */
  readonly sequences: readonly number[];
  readonly quick: boolean;
  /** What crowd measures. */
  readonly parts: readonly CrowdPart[];
  /** How many ask at once in load, one row after the other, and for how many minutes. */
  readonly clients: readonly number[];
  readonly minutes: number;
  /** The program of a server that load compares with; null: none. */
  readonly peer: string | null;
  /** What audit asks. */
  readonly over: readonly string[];
  /** Folder where audit keeps what it asks; null: it makes it for this run. */
  readonly keep: string | null;
}

/** Throws KvError 'bad-argument' for flags and values that are not valid. */
export function readCommand(words: readonly string[]): Command {
  const { values, positionals } = parse(words);
  const given = <T>(text: string | undefined, read: (text: string) => T): T | null =>
    text === undefined ? null : read(text);
  return {
    names: positionals,
    settings: {
      shapes: given(values.shapes, shapes),
      formats: given(values.formats, pairs),
      tokens: given(values.tokens, (text) => whole('--tokens', text, 0, 2 ** 20)),
      threads: whole('--threads', values.threads, 1, 64),
      full: values.full,
      peers: values.peers,
      rounds: whole('--rounds', values.rounds, 1, 1000)[0]!,
      arenaBytes: undefined,
      model: values.model,
      steps: whole('--steps', values.steps, 1, 100_000)[0]!,
      kvBudget: values['kv-budget'],
      entries: whole('--entries', values.entries, 1000, 10_000_000)[0]!,
      sessions: whole('--sessions', values.sessions, 1000, 10_000_000)[0]!,
    },
    isas: given(values.isa, (text) => isasNamed(positionals, text)),
    json: values.json ?? null,
    table: values.table,
    indexes: values.indexes.split(',').map(indexNamed),
    models: values.models.split(',').map(modelNamed),
    sequences: whole('--sequences', values.sequences, 1, 256),
    quick: values.quick,
    parts: values.parts.split(',').map(crowdPartNamed),
    clients: whole('--clients', values.clients, 1, 1024),
    minutes: whole('--minutes', values.minutes, 1, 24 * 60)[0]!,
    peer: values.peer ?? null,
    over: values.over.split(',').map(partNamed),
    keep: values.keep ?? null,
  };
}

function parse(words: readonly string[]) {
  try {
    return parseArgs({
      args: [...words],
      allowPositionals: true,
      options: {
        full: { type: 'boolean', default: false },
        peers: { type: 'boolean', default: false },
        quick: { type: 'boolean', default: false },
        table: { type: 'boolean', default: false },
        // scripts/bootstrap.mjs builds and registers them.
        yardsticks: { type: 'boolean', default: false },
        shapes: { type: 'string' },
        formats: { type: 'string' },
        tokens: { type: 'string' },
        threads: { type: 'string', default: '1' },
        isa: { type: 'string' },
        rounds: { type: 'string', default: '11' },
        json: { type: 'string' },
        model: { type: 'string', default: 'smollm2-135m' },
        models: { type: 'string', default: MODELS.join() },
        sequences: { type: 'string', default: '1,2,4,8,16' },
        steps: { type: 'string', default: '384' },
        sessions: { type: 'string', default: '1000000' },
        entries: { type: 'string', default: '1000000' },
        clients: { type: 'string', default: '16,64' },
        minutes: { type: 'string', default: '10' },
        peer: { type: 'string' },
        over: { type: 'string', default: AUDIT_PARTS.join() },
        keep: { type: 'string' },
        parts: { type: 'string', default: CROWD_PARTS.join() },
        indexes: { type: 'string', default: INDEXES.join() },
        'kv-budget': { type: 'string', default: '25%' },
      },
    });
  } catch (cause) {
    throw new KvError('bad-argument', (cause as Error).message.split('. ')[0]!, {
      hint: 'scripts/bench/main.ts lists the flags',
      cause,
    });
  }
}

function whole(flag: string, text: string, least: number, most: number): readonly number[] {
  const list = text.split(',').map((word) => (/^\d+$/.test(word.trim()) ? Number(word) : Number.NaN));
  if (list.every((number) => number >= least && number <= most)) return list;
  throw new KvError('bad-argument', `${flag} ${text}: it takes whole numbers from ${least} to ${most}`, {
    values: { flag, text },
  });
}

function indexNamed(text: string): IndexName {
  const index = INDEXES.find((name) => name === text);
  if (index !== undefined) return index;
  throw new KvError('bad-argument', `retrieval measures nothing called ${text}`, {
    hint: `it measures ${INDEXES.join(', ')}`,
  });
}

function partNamed(text: string): string {
  if (AUDIT_PARTS.includes(text)) return text;
  throw new KvError('bad-argument', `audit asks nothing called ${text}`, { hint: `it asks ${AUDIT_PARTS.join(', ')}` });
}

function crowdPartNamed(text: string): CrowdPart {
  const part = CROWD_PARTS.find((name) => name === text);
  if (part !== undefined) return part;
  throw new KvError('bad-argument', `crowd measures nothing called ${text}`, {
    hint: `it measures ${CROWD_PARTS.join(', ')}`,
  });
}

function modelNamed(text: string): ModelName {
  const model = MODELS.find((name) => name === text);
  if (model !== undefined) return model;
  throw new KvError('bad-argument', `no model called ${text} is measured`, {
    hint: `there are: ${MODELS.join(', ')}`,
  });
}

function isasNamed(benches: readonly string[], text: string): readonly Isa[] {
  const isas = text.split(',').map(isaNamed);
  if (isas.length === 1 || ['machines', 'many'].includes(benches.join())) return isas;
  throw new KvError('bad-argument', `--isa ${text}: a run uses the kernels of one instruction set`, {
    hint: 'only machines and many take several',
  });
}

function isaNamed(text: string): Isa {
  const isa = ISA_NAMES.find((name) => name === text);
  if (isa !== undefined) return isa;
  throw new KvError('bad-argument', `there is no instruction set called ${text}`, {
    hint: `there are: ${ISA_NAMES.join(', ')}`,
  });
}
