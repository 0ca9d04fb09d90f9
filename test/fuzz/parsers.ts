/**
 * Every parser of a file that may come from elsewhere gets damaged files. Whatever they say, it ends in a KvError of
 * the closed list or in an answer, within a second and 64 MiB, and nothing is written. Damage follows a seed: a round
 * is repeated by it.
 */

import { createHash, generateKeyPairSync } from 'node:crypto';
import { mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, statSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { setImmediate } from 'node:timers/promises';
import { inspect } from 'node:util';
import { crc32 } from 'node:zlib';
import { PackPages, type SessionPack } from '../../engine/cache/pack-pages.ts';
import { inspectPath } from '../../engine/cli/inspect.ts';
import { PackInstance } from '../../engine/packs/instance.ts';
import { instrumentModule } from '../../engine/packs/instrument.ts';
import { cacheBytes, fillCache } from '../../engine/session/park/cache-bytes.ts';
import { readParked } from '../../engine/session/park/folder.ts';
import { PagePredictor } from '../../engine/session/park/page-predictor.ts';
import { formParked } from '../../engine/session/park/parked-file.ts';
import {
  DEVIATIONS,
  formPredictor,
  Predictor,
  type PredictorData,
  parsePredictor,
  type SideMap,
} from '../../engine/session/park/predictor.ts';
import { logisticShares } from '../../engine/session/park/rans.ts';
import { loadCache, openCache } from '../../engine/session/policy-cache.ts';
import { Trace } from '../../engine/trace/reader.ts';
import { expectedShapes } from '../../engine/transformer/config.ts';
import { loadModel } from '../../engine/transformer/load.ts';
import { RopeTable } from '../../engine/transformer/rope.ts';
import { formatThresholdFile, mergeThresholdFiles, openHnswIndex } from '../../memory/index.ts';
import { type KvCache, KvError, openKvCache, openPool } from '../../native/index.ts';
import { readCheckpoints, signCheckpoint } from '../../witness/checkpoint.ts';
import { crc32c } from '../../witness/crc32c.ts';
import { entryCrc } from '../../witness/entry.ts';
import { openWitnessLog, readLog, verifyLog } from '../../witness/index.ts';
import { signNote, verifierOf } from '../../witness/note.ts';
import { seeded } from '../random.ts';
import { tinyGguf, tinyHfConfig, tinySafetensors, tinyTokenizerJson } from '../unit/engine/transformer/model-files.ts';
import { from } from '../unit/memory/threshold-data.ts';
import { one, type Random } from './case.ts';
import { closeServer, HTTP, openServer, REQUEST, sendRequest } from './http.ts';
import { judge } from './judge.ts';
import { BINARY, damaged, JSON_TEXT, type Mutation } from './mutate.ts';
import { NAMED } from './named.ts';

export interface Parser {
  /** Sound files by name; what a round damages is one of `damage`. */
  files(): Promise<Readonly<Record<string, Buffer>>>;
  readonly damage: Readonly<Record<string, readonly Mutation[]>>;
  read(dir: string): unknown;
  /** Makes checksums right again, so that damage is seen behind them. */
  repair?(content: Buffer): Buffer;
  /** For what may wait for a deadline of its own. */
  readonly millisecondsMax?: number;
  /** Gives back what reading opened. */
  close?(): Promise<void>;
}

const { privateKey } = generateKeyPairSync('ed25519');

async function inFolder<T>(work: (dir: string) => Promise<T>): Promise<T> {
  const dir = mkdtempSync(join(tmpdir(), 'palimpsest-fuzz-'));
  try {
    return await work(dir);
  } finally {
    rmSync(dir, { recursive: true, force: true });
  }
}

const contentOf = (dir: string): Record<string, Buffer> =>
  Object.fromEntries(
    (readdirSync(dir, { recursive: true }) as string[])
      .filter((name) => statSync(join(dir, name)).isFile())
      .map((name) => [name, readFileSync(join(dir, name))]),
  );

/** Reads every weight and uses the tokenizer. */
async function readModel(path: string): Promise<void> {
  const { config, weights, tokenizer } = await loadModel(path);
  try {
    for (const name of expectedShapes(config).keys())
      if (!weights.tensor(name).readFloat32().every(Number.isFinite)) throw new Error(`${name} is not finite`);
    tokenizer.decode(tokenizer.encode('hello a <s> ü 🦙 123 llllllll!', { special: true }));
  } finally {
    weights.close();
  }
}

const modelFiles = async (): Promise<Record<string, Buffer>> => ({
  'config.json': Buffer.from(JSON.stringify(tinyHfConfig)),
  'tokenizer.json': Buffer.from(JSON.stringify(tinyTokenizerJson)),
  'tokenizer_config.json': Buffer.from(
    JSON.stringify({ add_bos_token: true, chat_template: '{{ messages[0].content }}', eos_token: '</s>' }),
  ),
  'model.safetensors': tinySafetensors(seeded(1)),
});
const ofModel = (name: string, mutations: readonly Mutation[], more: Partial<Parser> = {}): Parser => ({
  files: modelFiles,
  damage: { [name]: mutations },
  read: readModel,
  ...more,
});

/** Right checksums in the header and in every entry that can be found; the chain is left as it is. */
export function repairSegment(content: Buffer): Buffer {
  const bytes = Buffer.from(content);
  if (bytes.length < 116) return bytes;
  const header = bytes.readUInt32LE(12);
  if (header < 84 || header > bytes.length) return bytes;
  bytes.writeUInt32LE(crc32c(bytes.subarray(0, header - 4)), header - 4);
  for (let at = header; at + 8 < bytes.length; ) {
    const length = bytes.readUInt32LE(at);
    if (at + 40 + length > bytes.length) break;
    bytes.writeUInt32LE(entryCrc(2, bytes.subarray(at, at + 4), bytes.subarray(at + 8, at + 8 + length)), at + 4);
    at += 40 + length;
  }
  return bytes;
}

/** Changes the JSON of a safetensors file, and says how long it is then. */
const safetensorsHeader: Mutation = (content, random) => {
  if (content.length < 8) return content;
  const end = 8 + content.readUInt32LE(0);
  const json = damaged(content.subarray(8, end), JSON_TEXT, random);
  const length = Buffer.alloc(8);
  length.writeUInt32LE(json.length);
  return Buffer.concat([length, json, content.subarray(end)]);
};

/** Changes the header of a trace: a length, JSON, and its checksum. */
export function traceHeader(sound: Buffer, change: (json: Buffer) => Buffer): Buffer {
  const end = 12 + sound.readUInt32LE(8);
  const json = change(sound.subarray(12, end));
  const [length, checksum] = [Buffer.alloc(4), Buffer.alloc(4)];
  length.writeUInt32LE(json.length);
  checksum.writeUInt32LE(crc32(json));
  return Buffer.concat([sound.subarray(0, 8), length, json, checksum, sound.subarray(end + 4)]);
}

const traceJson: Mutation = (content, random) =>
  content.length < 12 ? content : traceHeader(content, (json) => damaged(json, JSON_TEXT, random));

/** Signs again what was changed. */
const repairNote = (content: Buffer): Buffer => {
  const [text = ''] = content.toString('utf8').split('\n\n');
  return Buffer.from(signNote(`${text}\n`, privateKey));
};

const PARKED_SHAPE = { layers: 2, queryHeads: 2, kvHeads: 1, headDim: 64 };
const PARKED_TOKENS = 150;

/** One of two layers that predicts nothing in particular. */
function tinyPredictor(): PredictorData {
  const random = seeded(4);
  const side = (contraction: number): SideMap => ({
    contraction,
    weights: Int8Array.from({ length: 64 * contraction }, (_, at) =>
      at % contraction === Math.floor(at / contraction) ? 127 : Math.floor(8 * random()) - 4,
    ),
    scales: new Float32Array(64).fill(0.001),
    base: new Float32Array(64),
    factors: new Uint8Array(64).fill(6),
    tables: new Uint8Array(64).fill(6),
  });
  const edges = { centres: new Float32Array(128), gains: new Float32Array(128).fill(100) };
  return {
    modelDigest: '12'.repeat(32),
    shape: { layers: 2, kvHeads: 1, headDim: 64 },
    shares: Uint16Array.from(DEVIATIONS.flatMap((deviation) => [...logisticShares(deviation)])),
    layers: [
      { k: side(64), v: side(128), ...edges },
      { k: side(192), v: side(256), ...edges },
    ],
  };
}

function tinyPages(): PagePredictor {
  const config = {
    kvHeads: 1,
    headDim: 64,
    rotaryDim: 64,
    ropeTheta: 10_000,
    ropeScaling: { kind: 'none' },
    ropeInterleaved: false,
    contextLength: 4096,
  } as const;
  return new PagePredictor(new Predictor(tinyPredictor()), config, new RopeTable(config, 256));
}

const repairPredictor = (content: Buffer): Buffer => {
  if (content.length < 32) return content;
  const body = content.subarray(0, content.length - 32);
  return Buffer.concat([body, createHash('sha256').update(body).digest()]);
};

const block6 = (): SessionPack => {
  const module = instrumentModule(
    readFileSync(join(import.meta.dirname, '..', '..', 'packs', 'block6', 'block6.wasm')),
  );
  return { name: 'block6', digest: '56'.repeat(32), open: () => PackInstance.open(module, { fuelPerToken: 1200 }) };
};

/** Pages of a cache in a pack that nobody withdraws. */
const inPack = (kv: KvCache, pack: SessionPack): PackPages =>
  new PackPages({
    ...{ pack, kv, attention: {}, lowest: { k: 'trellis2', v: 'trellis2' } },
    ...{ mayGoBack: () => false, isShared: () => false, onLeft: () => {} },
  });

/** A parked session of two layers: a page, and an open page of rows in f16. */
function parkedFile(predicted: PagePredictor | null, pack?: SessionPack): Buffer {
  const [pool, shape] = [openPool(2 ** 24), PARKED_SHAPE];
  const kv = openKvCache({ pool, shape });
  const random = seeded(3);
  for (let layer = 0; layer < shape.layers; layer++) {
    const [k, v] = [0, 1].map(() => Float32Array.from({ length: PARKED_TOKENS * 64 }, () => random() - 0.5));
    kv.append(layer, k!, v!);
  }
  if (pack !== undefined) for (let layer = 0; layer < shape.layers; layer++) inPack(kv, pack).hold(layer, 0);
  const cache = cacheBytes(kv, PARKED_TOKENS, predicted);
  kv.close();
  pool.close();
  const found = (['k', 'v'] as const).map(
    (side) => ({ layer: 1, page: 0, side, from: 'q8', epsilon: { rot4: 0.01 } }) as const,
  );
  return formParked({
    head: {
      session: 'a',
      parkedMs: 1_700_000_000_000,
      model: { name: 'm', digest: '12'.repeat(32), architecture: 'llama' },
      shape,
      tokens: PARKED_TOKENS,
      textDigest: '34'.repeat(32),
      policy: { id: 'price', version: 3, machine: 'x' },
      options: { kvBudget: '25%', tokensExpected: 4096 },
      ...(pack === undefined ? {} : { pack: { name: pack.name, digest: pack.digest, pages: [[0], [0]] } }),
      predictor: predicted?.predictor.digest ?? null,
      kvBytes: 1,
      kvBytesF16: 2,
      trials: {
        admitted: 1,
        due: 0,
        found,
        waiting: [{ layer: 0, page: 0 }],
        waitingAgain: [],
        foundAgain: [],
      },
    },
    tokens: Array.from({ length: PARKED_TOKENS }, (_, i) => i),
    lastHidden: Float32Array.of(1, 2, 3, 4),
    cache,
  });
}

/** Right checksums behind the head and behind the cache. */
export function repairParked(content: Buffer): Buffer {
  const bytes = Buffer.from(content);
  if (bytes.length < 96) return bytes;
  const end = 32 + bytes.readUInt32LE(8) + 4 * bytes.readUInt32LE(12) + 4 * bytes.readUInt32LE(16);
  if (end + 64 > bytes.length) return bytes;
  const sum = (from: number, to: number): Buffer => createHash('sha256').update(bytes.subarray(from, to)).digest();
  sum(0, end).copy(bytes, end);
  sum(end + 32, bytes.length - 32).copy(bytes, bytes.length - 32);
  return bytes;
}

/** Changes the JSON of a file behind `fixedBytes`, of which the ninth on say how long it is, and says so. */
const jsonBehind =
  (fixedBytes: number): Mutation =>
  (content, random) => {
    if (content.length < 96) return content;
    const end = fixedBytes + content.readUInt32LE(8);
    const json = damaged(content.subarray(fixedBytes, end), JSON_TEXT, random);
    const fixed = Buffer.from(content.subarray(0, fixedBytes));
    fixed.writeUInt32LE(json.length, 8);
    return Buffer.concat([fixed, json, content.subarray(end)]);
  };
const parkedJson = jsonBehind(32);

/** A cache of one layer that was saved, with pages under a budget. */
const savedCache = (): Promise<Readonly<Record<string, Buffer>>> =>
  inFolder(async (dir) => {
    const cache = await openCache({ ...SAVED_SHAPE, ...SAVED });
    const random = seeded(5);
    const rows = (heads: number): Float32Array => Float32Array.from({ length: 130 * heads * 64 }, () => random() - 0.5);
    for (let step = 0; step < 3; step++) {
      cache.append(0, rows(1), rows(1));
      cache.attention(0, rows(2));
    }
    cache.save(join(dir, 'a.cache'));
    await cache.close();
    return contentOf(dir);
  });
const SAVED_SHAPE = { layers: 1, queryHeads: 2, kvHeads: 1, headDim: 64 } as const;
const SAVED = { kvBudget: '60%', tokensExpected: 400 } as const;

export const PARSERS: Readonly<Record<string, Parser>> = {
  segment: {
    files: () =>
      inFolder(async (dir) => {
        const log = await openWitnessLog({ dir, clock: () => 1_700_000_000_000 });
        for (let n = 0; n < 12; n++) log.append(`s${n % 2}`, 'note', { n, text: 'abc '.repeat(n) });
        await log.close();
        return contentOf(dir);
      }),
    damage: { '00000000.wal': BINARY },
    repair: repairSegment,
    read: (dir) => {
      verifyLog(dir);
      return [...readLog(dir)];
    },
  },
  // Keys of sessions beside a log, each a small JSON file.
  sealed: {
    files: () =>
      inFolder(async (dir) => {
        const log = await openWitnessLog({ dir, encrypt: true });
        for (let n = 0; n < 6; n++) log.append(`s${n % 2}`, 'note', { n });
        await log.close();
        return contentOf(dir);
      }),
    damage: {},
    read: (dir) => [...readLog(dir)],
  },
  checkpoint: {
    files: async () => {
      const body = { logId: 'ab'.repeat(16), series: 0, timeMs: 1_700_000_000_000 };
      const hashes = { rootHash: '12'.repeat(32), headHash: '34'.repeat(32) };
      return {
        notes: Buffer.from(
          [7, 8, 1234].map((size) => signCheckpoint({ ...body, ...hashes, size }, privateKey)).join(''),
        ),
      };
    },
    damage: { notes: BINARY },
    repair: repairNote,
    read: (dir) => readCheckpoints(join(dir, 'notes'), [verifierOf(privateKey)]),
  },
  thresholds: {
    files: async () => ({
      'thresholds.json': Buffer.from(formatThresholdFile(mergeThresholdFiles([from('one', 9), from('two', 9, 2)]))),
    }),
    damage: { 'thresholds.json': JSON_TEXT },
    read: (dir) => inspectPath(join(dir, 'thresholds.json'), dir),
  },
  safetensors: ofModel('model.safetensors', [...BINARY, ...JSON_TEXT, ...BINARY.map(() => safetensorsHeader)]),
  gguf: {
    files: async () => ({ 'model.gguf': tinyGguf(seeded(1)) }),
    damage: { 'model.gguf': BINARY },
    read: (dir) => readModel(join(dir, 'model.gguf')),
  },
  config: ofModel('config.json', JSON_TEXT),
  // A pattern may take its two seconds in each stretch between added tokens (tokenizer-steps.ts).
  tokenizer: ofModel('tokenizer.json', JSON_TEXT, { millisecondsMax: 7000 }),
  template: ofModel('tokenizer_config.json', JSON_TEXT),
  trace: {
    files: async () => ({ 'a.trace': readFileSync(join(import.meta.dirname, '../golden/trace-v1.trace')) }),
    damage: {
      'a.trace': [...BINARY, ...BINARY.map(() => traceJson)],
    },
    read: (dir) => {
      const trace = Trace.open(join(dir, 'a.trace'));
      try {
        for (let page = 0; page < trace.pages; page++) trace.page(page, 0);
        return trace.sketch(0);
      } finally {
        trace.close();
      }
    },
  },
  parked: {
    files: async () => ({
      'a.parked': parkedFile(null),
      'b.parked': parkedFile(tinyPages()),
      'c.parked': parkedFile(null, block6()),
    }),
    damage: {
      'a.parked': [...BINARY, ...BINARY.map(() => parkedJson)],
      'b.parked': [...BINARY, ...BINARY.map(() => parkedJson)],
      'c.parked': [...BINARY, ...BINARY.map(() => parkedJson)],
    },
    repair: repairParked,
    read: (dir) => {
      for (const name of ['a.parked', 'b.parked', 'c.parked']) {
        const { head, cache, fault, tokens } = readParked(join(dir, name));
        if (fault !== null) throw new KvError('checksum-mismatch', fault);
        const [pool, shape] = [openPool(2 ** 24), PARKED_SHAPE];
        const kv = openKvCache({ pool, shape });
        try {
          const packs = head.pack === undefined ? null : inPack(kv, block6());
          fillCache(kv, tokens.length, cache, { predicted: head.predictor === null ? null : tinyPages(), packs });
        } finally {
          kv.close();
          pool.close();
        }
      }
    },
  },
  saved: {
    files: savedCache,
    damage: { 'a.cache': [...BINARY, ...BINARY.map(() => jsonBehind(24))] },
    repair: repairPredictor,
    read: async (dir) => (await loadCache(join(dir, 'a.cache'), SAVED)).close(),
  },
  predictor: {
    files: async () => ({ 'a.predictor': formPredictor(tinyPredictor()) }),
    damage: { 'a.predictor': BINARY },
    repair: repairPredictor,
    read: (dir) => {
      const predictor = new Predictor(parsePredictor(readFileSync(join(dir, 'a.predictor')), 'a.predictor'));
      predictor.packed();
      predictor.close();
    },
  },
  ...NAMED,
  http: {
    files: async () => {
      await openServer();
      return { request: REQUEST };
    },
    damage: { request: HTTP },
    read: (dir) => sendRequest(readFileSync(join(dir, 'request'))),
    close: closeServer,
  },
  hnsw: {
    files: () =>
      inFolder(async (dir) => {
        const random = seeded(2);
        const index = await openHnswIndex<{ n: number }>({ dir, dim: 4 });
        for (let n = 0; n < 20; n++)
          await index.add([{ id: { log: 'a', seq: n }, vector: Array.from({ length: 4 }, random), payload: { n } }]);
        await index.save();
        await index.close();
        return contentOf(dir);
      }),
    damage: {},
    read: (dir) => inspectPath(dir, dir),
  },
};

export interface Finding {
  readonly parser: string;
  /** From 1; 0: the sound files. */
  readonly round: number;
  /** Of this round, which is the first one of a run with it. */
  readonly seed: number;
  readonly what: string;
}

export interface Fuzzed {
  readonly rounds: number;
  readonly refused: number;
  readonly found: Finding | null;
}

export function writeFiles(dir: string, files: Readonly<Record<string, Buffer>>): void {
  for (const [name, content] of Object.entries(files)) {
    mkdirSync(dirname(join(dir, name)), { recursive: true });
    writeFileSync(join(dir, name), content);
  }
}

export interface ParserFuzz {
  readonly seed: number;
  readonly seconds?: number;
  readonly rounds?: number;
  /** Told before every round which it is, and its seed. */
  readonly onRound?: (round: number, seed: number) => void;
}

/** Damages and reads until time, rounds or a finding end it. Whatever is thrown is a finding. */
export async function fuzzParser(
  name: string,
  { seed, seconds = Number.POSITIVE_INFINITY, rounds = Number.POSITIVE_INFINITY, onRound }: ParserFuzz,
): Promise<Fuzzed> {
  const parser = PARSERS[name]!;
  const files = await parser.files();
  let [round, refused] = [0, 0];
  const work = async (dir: string): Promise<void> => {
    writeFiles(dir, files);
    const refusal = await judge(parser, dir);
    if (refusal !== null) throw new Error('the sound files are refused', { cause: refusal });
    const end = performance.now() + seconds * 1000;
    while (round < rounds && performance.now() < end) {
      round++;
      onRound?.(round, seed + round - 1);
      const random: Random = seeded(seed + round - 1);
      const file = one(random, Object.keys(parser.damage).length > 0 ? Object.keys(parser.damage) : Object.keys(files));
      const mutations = parser.damage[file] ?? (/\.(json|key)$/.test(file) ? JSON_TEXT : BINARY);
      const changed = damaged(files[file]!, mutations, random);
      writeFileSync(join(dir, file), parser.repair !== undefined && random() < 0.5 ? parser.repair(changed) : changed);
      if ((await judge(parser, dir)) !== null) refused++;
      // What a reading left behind it, a timer or a promise, fails in its own round.
      await setImmediate();
      writeFileSync(join(dir, file), files[file]!);
    }
  };
  try {
    await inFolder(work);
    return { rounds: round, refused, found: null };
  } catch (error) {
    const found = { parser: name, round, seed: seed + Math.max(0, round - 1), what: inspect(error) };
    return { rounds: round, refused, found };
  } finally {
    await parser.close?.();
  }
}
