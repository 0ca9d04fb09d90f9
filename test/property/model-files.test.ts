// Damages model files by seeded mutations (cuts, flipped bits, extreme lengths and counts, numbers and pieces of JSON
// replaced) and loads them: each must end in a KvError or load with finite weights, in bounded time and memory.
// A failure names its seed and mutation, which repeat it.
import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, describe, expect, test } from 'vitest';
import { expectedShapes } from '../../engine/transformer/config.ts';
import { createNativeBackend } from '../../engine/transformer/dense-native.ts';
import { openGguf } from '../../engine/transformer/gguf.ts';
import { loadModel } from '../../engine/transformer/load.ts';
import { RandomNumbers } from '../../engine/transformer/sampling/random.ts';
import { ggufTokenizer } from '../../engine/transformer/tokenizer-gguf.ts';
import type { LoadedModel } from '../../engine/transformer/types.ts';
import { KvError } from '../../native/index.ts';
import { FAMILY_NAMES, ggufParts, hfFiles, readFamily } from '../model/family-files.ts';
import { isForHome } from '../tier.ts';
import {
  BLOCK_TYPES,
  blockTypeGguf,
  gguf,
  hasSharedData,
  referenceModel,
  sharedData,
  temporaryFolder,
  tinyGguf,
  tinyHfConfig,
  tinySafetensors,
  tinyTokenizerJson,
} from '../unit/engine/transformer/model-files.ts';

const SEED = Number(process.env.PALIMPSEST_TEST_SEED ?? 30_303);
const MUTATIONS = Number(process.env.PALIMPSEST_TEST_MUTATIONS ?? 100);
const MILLISECONDS_MAX = 1000;
const BYTES_MAX = 64 * 2 ** 20;

const folder = temporaryFolder();
afterAll(() => folder.remove());

type Mutation = (content: Buffer, random: RandomNumbers) => Buffer;
const below = (random: RandomNumbers, count: number): number => Math.floor(random.uniform() * count);
const pick = <T>(random: RandomNumbers, list: readonly T[]): T => list[below(random, list.length)]!;

const cut: Mutation = (content, random) => content.subarray(0, below(random, content.length));

const flipBits: Mutation = (content, random) => {
  const changed = Buffer.from(content);
  for (let i = 1 + below(random, 6); i > 0; i--) changed[below(random, changed.length)]! ^= 1 << below(random, 8);
  return changed;
};

const EXTREMES: readonly bigint[] = [
  0n,
  1n,
  2n ** 16n,
  2n ** 31n,
  2n ** 32n - 1n,
  2n ** 40n,
  2n ** 53n,
  2n ** 62n,
  2n ** 63n,
  2n ** 64n - 1n,
];

const extremeNumber: Mutation = (content, random) => {
  const changed = Buffer.from(content);
  const wide = Buffer.alloc(8);
  wide.writeBigUInt64LE(pick(random, EXTREMES));
  wide.copy(changed, below(random, Math.max(1, changed.length - 8)), 0, pick(random, [4, 8]));
  return changed;
};

/** Counts and lengths stand at the start of the file. */
const extremeStart: Mutation = (content, random) => {
  const changed = Buffer.from(content);
  changed.writeBigUInt64LE(pick(random, EXTREMES), pick(random, [0, 8, 16]));
  return changed;
};

const moveBytes: Mutation = (content, random) => {
  const [from, bytes, to] = [below(random, content.length), below(random, 64), below(random, content.length)];
  const piece = content.subarray(from, from + bytes);
  const keep = random.uniform() < 0.5 ? to : to + bytes;
  return Buffer.concat([content.subarray(0, to), piece, content.subarray(keep)]);
};

const NUMBERS: readonly string[] = [
  '-1',
  '0',
  '1e308',
  '1e999',
  '0.5',
  '4294967296',
  '9007199254740993',
  '1e9',
  '-0',
  'null',
  '"8"',
  '[]',
  '{}',
];

/** Replaces a number, or a text, of a JSON text by something odd. */
const oddValue: Mutation = (content, random) => {
  const text = content.toString('latin1');
  const values = [...text.matchAll(random.uniform() < 0.7 ? /-?\d+(\.\d+)?([eE][+-]?\d+)?/g : /"[^"\\]*"/g)];
  if (values.length === 0) return flipBits(content, random);
  const { index, 0: old } = pick(random, values);
  return Buffer.from(text.slice(0, index) + pick(random, NUMBERS) + text.slice(index + old.length), 'latin1');
};

/** Each of these is worth a try: patterns that backtrack, replacements that grow, sizes that never advance. */
const STEPS: readonly object[] = [
  ...['(a+)+$', '(\\s*)*x', '(l|ll)+$', '', '.', '^', '(?<=l)', '[', '\\p{L}{0,1000}{0,1000}'].map((pattern) => ({
    Regex: pattern,
  })),
  ...['', 'l', 'hello'].map((text) => ({ String: text })),
].flatMap((pattern) => [
  { type: 'Replace', pattern, content: 'x'.repeat(64) },
  { type: 'Replace', pattern, content: 'y' },
  { type: 'Split', pattern, behavior: 'Isolated', invert: false },
  { type: 'Split', pattern, behavior: 'Removed', invert: true },
]);
const ODD_STEPS: readonly object[] = [
  ...STEPS,
  ...[0, -1, 0.5, 1, 1e9, '1'].map((length) => ({ type: 'FixedLength', length })),
  ...[
    'NFKC',
    'Strip',
    'Lowercase',
    'Precompiled',
    'BertNormalizer',
    'Whitespace',
    'Punctuation',
    'Digits',
    'Unknown',
  ].map((type) => ({ type })),
  { type: 'Prepend', prepend: 'x'.repeat(1e5) },
  { type: 'Metaspace', replacement: 'x'.repeat(1e5), prepend_scheme: 'always' },
];

/** Puts one to three such steps in the place of a tokenizer's own. */
const oddSteps: Mutation = (content, random) => {
  const json = JSON.parse(content.toString('utf8')) as Record<string, unknown>;
  const steps = Array.from({ length: 1 + below(random, 3) }, () => pick(random, ODD_STEPS));
  if (random.uniform() < 0.5) json['normalizer'] = { type: 'Sequence', normalizers: steps };
  else json['pre_tokenizer'] = { type: 'Sequence', pretokenizers: [...steps, { type: 'ByteLevel', use_regex: false }] };
  return Buffer.from(JSON.stringify(json));
};

/** Packs what was loaded as a session would, and asks it for the token behind a first one. */
async function packAndAnswer({ config, weights }: LoadedModel): Promise<void> {
  const backend = await createNativeBackend({ config, weights }, { precision: 'auto', threads: 1 });
  const { x } = await backend.first(backend.embed(Int32Array.of(3)), 1);
  expect(await backend.logits(x, 1)).toHaveLength(config.vocabSize);
  await backend.close();
}

/** Loads, reads every weight and uses the tokenizer: whatever happens must be a KvError or go well. */
async function load(
  path: string,
  work: (model: LoadedModel) => Promise<void> = async () => {},
): Promise<'loaded' | 'refused'> {
  try {
    const model = await loadModel(path);
    try {
      for (const name of expectedShapes(model.config).keys()) {
        if (!model.weights.tensor(name).readFloat32().every(Number.isFinite)) throw new Error(`${name} is not finite`);
      }
      const { tokenizer } = model;
      tokenizer.decode(
        tokenizer.encode(`hello a <s> ü 🦙 123 ${'l'.repeat(40)} ${'a'.repeat(40)}!`, { special: true }),
      );
      await work(model);
    } finally {
      model.weights.close();
    }
    return 'loaded';
  } catch (error) {
    if (error instanceof KvError) return 'refused';
    throw error;
  }
}

function heldBytes(): number {
  const { heapUsed, external } = process.memoryUsage();
  return heapUsed + external;
}

interface Damage {
  readonly content: Buffer;
  /** Damage within these first bytes; the rest stays. */
  readonly headerBytes?: number;
  readonly mutations: readonly Mutation[];
  /** For what may wait for a deadline. */
  readonly millisecondsMax?: number;
  /** How many mutations. */
  readonly count?: number;
  write(content: Buffer): void;
  run(): Promise<'loaded' | 'refused'>;
}

async function mustSurvive({
  content,
  headerBytes = content.length,
  mutations,
  millisecondsMax = MILLISECONDS_MAX,
  count = MUTATIONS,
  write,
  run,
}: Damage): Promise<Record<string, number>> {
  write(content);
  expect(await run(), 'the undamaged file').toBe('loaded');
  const counts: Record<string, number> = { loaded: 0, refused: 0 };
  for (let i = 0; i < count; i++) {
    const random = new RandomNumbers(SEED + i);
    const mutation = pick(random, mutations);
    const header = mutation(content.subarray(0, headerBytes), random);
    write(mutation === cut ? header : Buffer.concat([header, content.subarray(headerBytes)]));
    const [before, start] = [heldBytes(), process.cpuUsage()];
    try {
      const end = await run();
      counts[end]!++;
    } catch (cause) {
      throw new Error(`mutation ${i} of seed ${SEED} broke out of KvError`, { cause });
    }
    const { user, system } = process.cpuUsage(start);
    // Time that was computed, not time that passed: a busy machine is no failure.
    const [took, grew] = [(user + system) / 1000, heldBytes() - before];
    if (took > millisecondsMax || grew > BYTES_MAX + content.length) {
      throw new Error(
        `mutation ${i} of seed ${SEED} took ${took.toFixed(0)} ms and ${(grew / 2 ** 20).toFixed(1)} MiB`,
      );
    }
  }
  // Damage that is never noticed would mean that nothing is checked; the payload's low bits may be anything.
  expect(counts.refused).toBeGreaterThan(count / 10);
  return counts;
}

const uniform = (): (() => number) => {
  const random = new RandomNumbers(SEED);
  return () => random.uniform();
};
const weights = tinySafetensors(uniform());
const weightsHeader = 8 + weights.readUInt32LE(0);
const ggufFile = tinyGguf(uniform());
/** Twelve tensors of float32, 2880 bytes, each padded to 32: all that follows the header. */
const ggufHeader = ggufFile.lastIndexOf('blk.0.ffn_down.weight') + 21 + 4 + 16 + 4 + 8;

const hf = (): string => {
  folder.write('hf/config.json', JSON.stringify(tinyHfConfig));
  folder.write('hf/tokenizer.json', JSON.stringify(tinyTokenizerJson));
  folder.write(
    'hf/tokenizer_config.json',
    JSON.stringify({ add_bos_token: true, chat_template: '{{ messages }}', eos_token: '</s>' }),
  );
  folder.write('hf/generation_config.json', JSON.stringify({ eos_token_id: [1, 2] }));
  folder.write('hf/model.safetensors', weights);
  return join(folder.dir, 'hf');
};

describe(`${MUTATIONS} mutations of each, seed ${SEED}`, () => {
  const inFolder = (file: string) => ({
    write: (content: Buffer) => writeFileSync(join(hf(), file), content),
    run: () => load(join(folder.dir, 'hf')),
  });
  const inGguf = {
    write: (content: Buffer) => void folder.write('model.gguf', content),
    run: () => load(join(folder.dir, 'model.gguf')),
  };
  const binary = [cut, flipBits, extremeNumber, extremeStart, moveBytes];
  const json = [cut, flipBits, moveBytes, oddValue, oddValue];

  test('the header of a safetensors file', async () => {
    await mustSurvive({
      content: weights,
      headerBytes: weightsHeader,
      mutations: [...binary, oddValue, oddValue],
      ...inFolder('model.safetensors'),
    });
  });

  test('a safetensors file anywhere', async () => {
    await mustSurvive({ content: weights, mutations: binary, ...inFolder('model.safetensors') });
  });

  test('the header of a GGUF file', async () => {
    await mustSurvive({ content: ggufFile, headerBytes: ggufHeader, mutations: binary, ...inGguf });
  });

  test('a GGUF file anywhere', async () => {
    await mustSurvive({ content: ggufFile, mutations: binary, ...inGguf });
  });

  test.each(BLOCK_TYPES.filter((_, place) => isForHome(place, 3)))('a GGUF file of %s anywhere', async (type) => {
    const run = (): Promise<'loaded' | 'refused'> => load(join(folder.dir, 'model.gguf'), packAndAnswer);
    await mustSurvive({ content: blockTypeGguf(type, uniform()), mutations: binary, ...inGguf, run });
  });

  test('config.json', async () => {
    await mustSurvive({
      content: Buffer.from(JSON.stringify(tinyHfConfig)),
      mutations: json,
      ...inFolder('config.json'),
    });
  });

  // Half of the mutations in either kind of file.
  describe.each(FAMILY_NAMES.filter((_, place) => isForHome(place, 3)))('%s', (name) => {
    const family = readFamily(name);
    const count = Math.ceil(MUTATIONS / 2);
    const parts = ggufParts(family);
    const empty = parts.tensors.map((tensor) => ({ ...tensor, bytes: new Uint8Array(0) }));

    test('config.json', async () => {
      for (const [file, content] of Object.entries(hfFiles(family))) folder.write(`${name}/${file}`, content);
      await mustSurvive({
        content: Buffer.from(JSON.stringify(family.config)),
        mutations: json,
        count,
        write: (content) => void folder.write(`${name}/config.json`, content),
        run: () => load(join(folder.dir, name)),
      });
    });

    test('the header of a GGUF file', async () => {
      const headerBytes = gguf({ ...parts, tensors: empty }).length;
      await mustSurvive({ content: gguf(parts), headerBytes, mutations: binary, count, ...inGguf });
    });
  });

  test('tokenizer.json of a small vocabulary', async () => {
    await mustSurvive({
      content: Buffer.from(JSON.stringify(tinyTokenizerJson)),
      mutations: json,
      ...inFolder('tokenizer.json'),
    });
  });

  // A pattern may take its two seconds (tokenizer-steps.ts) in each stretch between added tokens, of which the text has
  // three.
  test('steps of a tokenizer that are out of all proportion', async () => {
    await mustSurvive({
      content: Buffer.from(JSON.stringify(tinyTokenizerJson)),
      mutations: [oddSteps],
      millisecondsMax: 7000,
      ...inFolder('tokenizer.json'),
    });
  });

  test('tokenizer.json of the reference model', async () => {
    // With the weights of the tiny model its words have no rows, so the whole folder is the reference's.
    for (const file of ['config.json', 'model.safetensors', 'tokenizer_config.json'])
      folder.write(`reference/${file}`, readFileSync(join(referenceModel, file)));
    await mustSurvive({
      content: readFileSync(join(referenceModel, 'tokenizer.json')),
      mutations: json,
      write: (content) => void folder.write('reference/tokenizer.json', content),
      run: async () => load(join(folder.dir, 'reference')),
    });
  });

  test.skipIf(!hasSharedData)('a vocabulary of 32,000 words in GGUF (needs ../shared/data)', async () => {
    await mustSurvive({
      content: readFileSync(join(sharedData, 'tokenizer-vectors', 'ggml-vocab-llama-spm.gguf')),
      mutations: binary,
      write: (content) => void folder.write('vocabulary.gguf', content),
      run: async () => {
        try {
          const file = openGguf(join(folder.dir, 'vocabulary.gguf'));
          file.close();
          const tokenizer = ggufTokenizer(file.metadata, 32000);
          tokenizer.decode(tokenizer.encode('hello a <s> ü 🦙 123', { special: true }));
          return 'loaded';
        } catch (error) {
          if (error instanceof KvError) return 'refused';
          throw error;
        }
      },
    });
  });
});
