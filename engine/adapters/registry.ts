/**
 * Adapters that a state folder knows by name. A name is a file that says a digest; what a digest adds is a file of its
 * own, scaled and in the order of a model's rows, so that the folder or file it came from may go. Either is written
 * beside, synced and renamed: a name that is given again stands for the new digest from then on, for every process.
 */
import { createHash } from 'node:crypto';
import { existsSync, readdirSync, rmSync } from 'node:fs';
import { join } from 'node:path';
import { z } from 'zod';
import { given, KvError, readJson, replaceFile } from '../../native/index.ts';
import { makeFolder } from '../state/folder.ts';
import { FileBytes } from '../transformer/bytes.ts';
import { readSafetensors } from '../transformer/safetensors.ts';
import type { LoadedModel } from '../transformer/types.ts';
import { type AdapterFile, checkPerOutput, type Factors, rankOf } from './factors.ts';
import { KeptGains } from './gains.ts';
import { invocationTokens } from './invocation.ts';
import { adapterOf } from './read.ts';
import type { Adapter, AdapterInfo } from './types.ts';

const digest = z.string().regex(/^[0-9a-f]{64}$/);
const entry = z.strictObject({
  version: z.literal(1),
  name: z.string().min(1).max(256),
  digest,
  /** Whether rows of q and k are in the order of rotary pairs (2i, 2i + 1). */
  interleaved: z.boolean(),
  format: z.enum(['PEFT', 'GGUF']),
  matrices: z.int().min(1),
  slots: z.array(z.string().max(16)).max(16),
  ranks: z.tuple([z.int().min(1), z.int().min(1)]),
  parameters: z.int().min(1),
  invocation: invocationTokens.optional(),
});

/** An adapter that is known by name. The digest is that for models whose rows have the order that it was added for. */
export type RegisteredAdapter = z.infer<typeof entry>;

/** What is told of one. */
export const registeredInfo = ({
  name,
  digest: id,
  format,
  matrices,
  slots,
  ranks,
  parameters,
  invocation,
}: RegisteredAdapter): AdapterInfo & { readonly name: string } => ({
  ...{ name, digest: id, format, matrices, slots, ranks, parameters },
  ...given({ invocation }),
});

const ENTRY_BYTES_MAX = 4096;
const NAME_FILE = /^[0-9a-f]{64}\.json$/;

export class AdapterRegistry {
  readonly #names: string;
  readonly #files: string;
  /** Digests for the other order of rows. */
  readonly #reordered = new Map<string, string>();
  /** Of adapters that are read from where they are, and not added. */
  readonly gains: KeptGains;

  constructor(stateDir: string) {
    this.gains = new KeptGains(stateDir);
    this.#names = join(stateDir, 'adapters', 'names');
    this.#files = join(stateDir, 'adapters', 'files');
  }

  /** Whether anything was ever added. */
  get exists(): boolean {
    return existsSync(this.#names);
  }

  /** By name. Throws 'bad-file' for a file that says no name, 'io'. */
  list(): RegisteredAdapter[] {
    if (!this.exists) return [];
    const names = readdirSync(this.#names).filter((file) => NAME_FILE.test(file));
    return names
      .flatMap((file) => this.#entry(join(this.#names, file)) ?? [])
      .sort((a, b) => (a.name < b.name ? -1 : a.name > b.name ? 1 : 0));
  }

  find(name: string): RegisteredAdapter | null {
    return this.#entry(this.#pathOf(name));
  }

  /** Keeps what an adapter adds, and its name. Throws 'bad-argument' for a name that is none, 'io'. */
  add(name: string, adapter: Adapter, { config }: Pick<LoadedModel, 'config'>): RegisteredAdapter {
    const { added: _, ...info } = adapter;
    const checked = entry.safeParse({ version: 1, name, interleaved: config.ropeInterleaved, ...info });
    if (!checked.success)
      throw new KvError('bad-argument', 'the name of an adapter has 1 to 256 characters', {
        values: { name: name.slice(0, 300) },
      });
    for (const dir of [join(this.#names, '..', '..'), join(this.#names, '..'), this.#names, this.#files])
      makeFolder(dir);
    const path = this.#fileOf(checked.data);
    if (!existsSync(path)) replaceFile(path, bytesOf(adapter));
    const before = this.find(name);
    replaceFile(this.#pathOf(name), new TextEncoder().encode(`${JSON.stringify(checked.data)}\n`));
    // Whoever removed its last name meanwhile may have taken the file along.
    if (!existsSync(path)) replaceFile(path, bytesOf(adapter));
    if (before !== null) this.#clear(before);
    return checked.data;
  }

  /** Forgets a name, and with the last of its names what was added. Throws 'not-found'. */
  remove(name: string): RegisteredAdapter {
    const found = this.find(name);
    if (found === null)
      throw new KvError('not-found', `no adapter '${name.slice(0, 300)}' is registered`, {
        values: { name: name.slice(0, 300) },
        hint: 'palimpsest adapters list says which are',
      });
    rmSync(this.#pathOf(name), { force: true });
    this.#clear(found);
    return found;
  }

  /**
   * What is added to a model. Throws 'checksum-mismatch' where the file is not what its digest names, and what reading
   * an adapter throws.
   */
  read(registered: RegisteredAdapter, { config }: Pick<LoadedModel, 'config'>): Adapter {
    const path = this.#fileOf(registered);
    const source = FileBytes.open(path);
    try {
      const file = fileOf(path, source, registered);
      const own = adapterOf(file, { ...config, ropeInterleaved: registered.interleaved });
      if (own.digest !== registered.digest)
        throw new KvError('checksum-mismatch', `${path} is not what it was`, {
          values: { path, expected: registered.digest, actual: own.digest },
          hint: `add the adapter '${registered.name}' again`,
        });
      return config.ropeInterleaved === registered.interleaved ? own : adapterOf(file, config);
    } finally {
      source.close();
    }
  }

  /** The first name of each digest that models with this order of rows see. Throws as `read` does. */
  namesFor(model: Pick<LoadedModel, 'config'>): ReadonlyMap<string, string> {
    const names = new Map<string, string>();
    for (const one of this.list()) {
      const seen = this.#digestFor(one, model);
      if (!names.has(seen)) names.set(seen, one.name);
    }
    return names;
  }

  /** One that is registered for another order of rows is read once. */
  #digestFor(one: RegisteredAdapter, model: Pick<LoadedModel, 'config'>): string {
    if (one.interleaved === model.config.ropeInterleaved) return one.digest;
    const known = this.#reordered.get(one.digest) ?? this.read(one, model).digest;
    this.#reordered.set(one.digest, known);
    return known;
  }

  /** Removes what no name stands for any more. */
  #clear(gone: RegisteredAdapter): void {
    const isNamed = this.list().some((one) => this.#fileOf(one) === this.#fileOf(gone));
    if (!isNamed) rmSync(this.#fileOf(gone), { force: true });
  }

  /** Names may hold what a file system has no place for, or takes for the same. */
  #pathOf(name: string): string {
    return join(this.#names, `${createHash('sha256').update(name).digest('hex')}.json`);
  }

  #fileOf({ digest: id, interleaved }: RegisteredAdapter): string {
    return join(this.#files, `${id}.${interleaved ? 'pairs' : 'halves'}.safetensors`);
  }

  /** null: it is not there, or is no longer. */
  #entry(path: string): RegisteredAdapter | null {
    if (!existsSync(path)) return null;
    const checked = entry.safeParse(readJson(path, { code: 'bad-file', bytesMax: ENTRY_BYTES_MAX }));
    if (checked.success) return checked.data;
    throw new KvError('bad-file', `${path} says no name of an adapter`, {
      values: { path },
      hint: 'remove it, and add the adapter again',
    });
  }
}

/** The factors as float32, named LAYER.SLOT.a and LAYER.SLOT.b, and LAYER.SLOT.gains of DoRA, as safetensors. */
function bytesOf({ added }: Adapter): Uint8Array {
  const header: Record<string, unknown> = {};
  const parts: Uint8Array[] = [];
  let at = 0;
  for (const { layer, slot, rank, a, b, gains } of added)
    for (const [half, values, shape] of [
      ['a', a, [rank, a.length / rank]],
      ['b', b, [b.length / rank, rank]],
      ...(gains === undefined ? [] : ([['gains', gains, [gains.length]]] as const)),
    ] as const) {
      header[`${layer}.${slot}.${half}`] = { dtype: 'F32', shape, data_offsets: [at, at + values.byteLength] };
      parts.push(new Uint8Array(values.buffer, values.byteOffset, values.byteLength));
      at += values.byteLength;
    }
  const text = JSON.stringify(header);
  const head = new TextEncoder().encode(text.padEnd(Math.ceil(text.length / 8) * 8));
  const length = new Uint8Array(8);
  new DataView(length.buffer).setBigUint64(0, BigInt(head.length), true);
  return Buffer.concat([length, head, ...parts]);
}

function fileOf(path: string, source: FileBytes, { format, interleaved, invocation }: RegisteredAdapter): AdapterFile {
  const tensors = readSafetensors(source);
  const factors = new Map<string, Factors>();
  for (const [name, a] of tensors) {
    if (!name.endsWith('.a')) continue;
    const weight = name.slice(0, -2);
    const b = tensors.get(`${weight}.b`);
    rankOf(path, weight, { a, ...(b === undefined ? {} : { b }) });
    const gains = tensors.get(`${weight}.gains`);
    checkPerOutput(path, weight, b!, gains);
    factors.set(weight, { file: weight, a, b: b!, scale: 1, gains });
  }
  const naming = { nameOf: (weight: string) => weight };
  return { format, path, factors, naming, interleaved, invocation, close: () => source.close() };
}
