/** Maps the tensor names of checkpoints to those that the engine asks for (types.ts), and checks every shape. */
import { KvError } from '../../native/index.ts';
import { expectedShapes } from './config.ts';
import type { Family, PartNames } from './families/family.ts';
import { llama } from './families/llama.ts';
import { type Checkpoint, JoinedRows, type StoredTensor } from './stored-tensor.ts';
import type { ModelConfig, Tensor, WeightSource } from './types.ts';

const HF_TOP: Names = {
  'embed_tokens.weight': 'embed',
  'lm_head.weight': 'head',
  'norm.weight': 'norm',
};
const HF_LAYER: Names = {
  'input_layernorm.weight': 'attnNorm',
  'post_attention_layernorm.weight': 'mlpNorm',
  'self_attn.q_norm.weight': 'qNorm',
  'self_attn.k_norm.weight': 'kNorm',
  ...matrices({ q: 'self_attn.q_proj', k: 'self_attn.k_proj', v: 'self_attn.v_proj', o: 'self_attn.o_proj' }),
  ...matrices({ gate: 'mlp.gate_proj', up: 'mlp.up_proj', down: 'mlp.down_proj' }),
};
const GGUF_TOP: Names = {
  'token_embd.weight': 'embed',
  'output.weight': 'head',
  'output_norm.weight': 'norm',
  'output_norm.bias': 'norm.bias',
};
/** Names in files with experts, which have one tensor for all, or in older ones a tensor for each. */
const GGUF_EXPERTS: Names = {
  'ffn_gate_inp.weight': 'router',
  'ffn_gate_exps.weight': 'gates',
  'ffn_up_exps.weight': 'ups',
  'ffn_down_exps.weight': 'downs',
  'ffn_gate.*.weight': 'gate',
  'ffn_up.*.weight': 'up',
  'ffn_down.*.weight': 'down',
};
const GGUF_LAYER: Names = {
  'attn_norm.weight': 'attnNorm',
  'ffn_norm.weight': 'mlpNorm',
  ...GGUF_EXPERTS,
  'attn_q_norm.weight': 'qNorm',
  'attn_k_norm.weight': 'kNorm',
  ...matrices({
    q: 'attn_q',
    k: 'attn_k',
    v: 'attn_v',
    o: 'attn_output',
    gate: 'ffn_gate',
    up: 'ffn_up',
    down: 'ffn_down',
  }),
};
/** Tensors that only repeat what the configuration says. */
const IGNORED = /(^|\.)(rotary_emb\.inv_freq|attn_rot_embd\.weight)$|^rope_(freqs|factors_(long|short))\.weight$/;

function matrices(names: Names): Record<string, string> {
  return Object.fromEntries(
    Object.entries(names).flatMap(([ours, theirs]) => [
      [`${theirs}.weight`, ours],
      [`${theirs}.bias`, `${ours}.bias`],
    ]),
  );
}

/** Towers for pictures and sound, and what leads from them into the text, in files that hold all of it. */
const GGUF_BESIDE_TEXT = /^(v|a|mm)\./;

/** How the tensors of a checkpoint are called, and what its norms leave out of their gains. */
export interface Naming {
  /** The engine's name of a tensor, null if it needs none, undefined if unknown. */
  nameOf(name: string): string | null | undefined;
  /** True of a tensor that text does not need, such as those of a vision tower. */
  isLeftOut(name: string): boolean;
  readonly gainOffset: number;
}

/** Names in a Hugging Face checkpoint. */
export function hfNaming({
  hfParts,
  hfGainOffset,
  hfPrefix = /^model\./,
  hfIgnored,
  hfTop = HF_TOP,
}: Pick<Family, 'hfParts' | 'hfGainOffset' | 'hfPrefix' | 'hfIgnored' | 'hfTop'> = llama): Naming {
  const parts = { ...HF_LAYER, ...hfParts };
  const ofLayer = /^(?:layers|h|blocks)\.(0|[1-9]\d{0,4})\.(.+)$/;
  const isLeftOut = (name: string) => hfIgnored?.test(name) === true;
  const nameOf = (name: string) =>
    isLeftOut(name) ? null : engineName(name, name.replace(hfPrefix, ''), ofLayer, hfTop, parts);
  return { nameOf, isLeftOut, gainOffset: hfGainOffset ?? 0 };
}

type GgufFamily = Pick<Family, 'ggufParts' | 'ggufPartsOf'>;

/** Names of the parts of a layer in GGUF files of a model. */
const ggufParts = (family: GgufFamily, config?: ModelConfig): Names => ({
  ...GGUF_LAYER,
  ...family.ggufParts,
  ...(config !== undefined && family.ggufPartsOf?.(config)),
});

/** Names in GGUF. */
export function ggufNaming(family: GgufFamily = llama, config?: ModelConfig): Naming {
  const parts = ggufParts(family, config);
  const ofLayer = /^blk\.(0|[1-9]\d{0,4})\.(.+)$/;
  const isLeftOut = (name: string) => GGUF_BESIDE_TEXT.test(name);
  const nameOf = (name: string) => (isLeftOut(name) ? null : engineName(name, name, ofLayer, GGUF_TOP, parts));
  return { nameOf, isLeftOut, gainOffset: 0 };
}

/** What GGUF files of a family call tensors: of a layer by its part, or by the parts that are stored as one. */
export function ggufNames(
  family: GgufFamily,
  config: ModelConfig,
): {
  readonly top: ReadonlyMap<string, string>;
  readonly layer: ReadonlyMap<string, string>;
} {
  const inverted = (names: Names) => new Map(Object.entries(names).map(([file, part]) => [part, file]));
  return { top: inverted(GGUF_TOP), layer: inverted(ggufParts(family, config)) };
}

/** Tensors are named as the engine names them. */
export const OWN_NAMES: Naming = { nameOf: (name) => name, isLeftOut: () => false, gainOffset: 0 };

type Names = PartNames;

/** The number of an expert in a name: `mlp.experts.7.up_proj.weight`, `ffn_up.7.weight`. */
const EXPERT = /\.(0|[1-9]\d{0,3})\./;

function engineName(name: string, bare: string, ofLayer: RegExp, top: Names, parts: Names): string | null | undefined {
  if (IGNORED.test(name)) return null;
  const layer = ofLayer.exec(bare);
  if (layer === null) return own(top, bare);
  const part = partOf(parts, layer[2]!);
  return part === undefined ? undefined : `${layer[1]}.${part}`;
}

function partOf(parts: Names, name: string): string | undefined {
  const [, expert] = EXPERT.exec(name) ?? [];
  if (expert === undefined) return name.includes('*') ? undefined : own(parts, name);
  const part = own(parts, name.replace(EXPERT, '.*.'));
  return part === undefined ? undefined : `${part}.${expert}`;
}

function own<T>(record: Readonly<Record<string, T>>, key: string): T | undefined {
  return Object.hasOwn(record, key) ? record[key] : undefined;
}

/** Tensors that are several of ours, whose rows follow one another. */
export const FUSED: Readonly<Record<string, readonly string[]>> = { qkv: ['q', 'k', 'v'], gateUp: ['gate', 'up'] };
/** Tensors [experts, rows, columns] that are these of each expert in turn. */
export const STACKED: Readonly<Record<string, readonly string[]>> = {
  gates: ['gate'],
  ups: ['up'],
  downs: ['down'],
  gateUps: ['gate', 'up'],
};

/** Tensors in which each KV head has its queries, its key and its value together. */
const GROUPED = 'qkvGroups';

type Stored = StoredTensor | JoinedRows;

interface Named {
  readonly stored: Stored;
  /** What the file calls it. */
  readonly file: string;
}

/**
 * Names the tensors of a checkpoint and checks them against the configuration: none may be missing, misshapen or left
 * over (ignoring a tensor would silently change the model). Throws KvError 'bad-model' or 'unsupported'.
 */
export function nameTensors(checkpoint: Checkpoint, config: ModelConfig, naming: Naming): WeightSource {
  const shapes = expectedShapes(config);
  const named = new Map<string, Named>();
  for (const [file, stored] of checkpoint.tensors) {
    const name = naming.nameOf(file);
    if (name === undefined) {
      throw new KvError(
        'unsupported',
        `the checkpoint has a tensor ${file.slice(0, 120)}, which no served architecture knows`,
        { values: { tensor: file, architecture: config.architecture } },
      );
    }
    if (name === null) continue;
    for (const [part, tensor] of parts(name, stored, file, shapes, config)) {
      const twin = named.get(part);
      if (twin !== undefined) throw bad(`${twin.file} and ${file} are the same tensor`, { tensor: part });
      named.set(part, { stored: tensor, file });
    }
  }
  tieEmbeddings(named, config);
  for (const [name, shape] of shapes) {
    const found = named.get(name);
    if (found === undefined) throw bad(`tensor ${name} is missing`, { tensor: name, shape });
    if (found.stored.shape.join() !== shape.join()) throw misshapen(found.file, name, found.stored.shape, shape);
  }
  for (const [name, { file }] of named) {
    if (!shapes.has(name)) throw bad(`the configuration has no place for tensor ${file}`, { tensor: name });
  }
  const tensors = [...named].map(([name, { stored }]) => [name, folded(name, stored, config, naming)] as const);
  return new NamedWeights(new Map(tensors), () => checkpoint.close());
}

/** A tensor by its name, or the parts that it is made of by theirs. */
function parts(
  name: string,
  stored: StoredTensor,
  file: string,
  shapes: ReadonlyMap<string, readonly number[]>,
  { experts, queryHeads, kvHeads, headDim }: ModelConfig,
): [string, Stored][] {
  const [layer, part, kind] = name.split('.');
  const stacked = part === undefined ? undefined : own(STACKED, part);
  if (stacked !== undefined) return expertParts(layer!, stacked, stored, file, shapes, experts?.count ?? 0);
  if (part === GROUPED) return groupParts(layer!, kind, stored, file, queryHeads / kvHeads, kvHeads, headDim);
  const fused = part === undefined ? undefined : own(FUSED, part);
  if (fused === undefined) return [[name, stored]];
  const names = fused.map((one) => [layer, one, ...(kind === undefined ? [] : [kind])].join('.'));
  const rows = names.map((one) => shapes.get(one)?.[0]);
  const total = rows.reduce((sum: number, one) => sum + (one ?? Number.NaN), 0);
  if (stored.shape[0] !== total) throw misshapen(file, name, stored.shape, [total, ...stored.shape.slice(1)]);
  let from = 0;
  return names.map((one, i) => [one, stored.slice(from, (from += rows[i]!))]);
}

/** Queries, keys and values of all groups by their names. */
function groupParts(
  layer: string,
  kind: string | undefined,
  stored: StoredTensor,
  file: string,
  queries: number,
  groups: number,
  headDim: number,
): [string, Stored][] {
  const rows = (queries + 2) * headDim;
  const expected = [groups * rows, ...stored.shape.slice(1)];
  if (stored.shape.join() !== expected.join()) throw misshapen(file, `${layer}.${GROUPED}`, stored.shape, expected);
  const ends = { q: [0, queries], k: [queries, queries + 1], v: [queries + 1, queries + 2] } as const;
  return Object.entries(ends).map(([name, [from, to]]) => {
    const parts = Array.from({ length: groups }, (_, group) =>
      stored.slice(group * rows + from * headDim, group * rows + to * headDim),
    );
    const full = [layer, name, ...(kind === undefined ? [] : [kind])].join('.');
    return [full, new JoinedRows(full, parts)];
  });
}

/** The matrices of each expert by their names. */
function expertParts(
  layer: string,
  each: readonly string[],
  stored: StoredTensor,
  file: string,
  shapes: ReadonlyMap<string, readonly number[]>,
  experts: number,
): [string, StoredTensor][] {
  const one = shapes.get(`${layer}.${each[0]}.0`);
  if (one === undefined) throw bad(`the configuration has no place for tensor ${file}`, { tensor: file });
  const [rows, columns] = one as [number, number];
  const expected = [experts, each.length * rows, columns];
  if (stored.shape.join() !== expected.join())
    throw misshapen(file, `${layer}.${each.join('+')}`, stored.shape, expected);
  const flat = stored.renamed(file, [experts * each.length * rows, columns]);
  return Array.from({ length: experts }, (_, expert) =>
    each.map((name, i): [string, StoredTensor] => {
      const from = (expert * each.length + i) * rows;
      return [`${layer}.${name}.${expert}`, flat.slice(from, from + rows)];
    }),
  ).flat();
}

/** What the configuration says of gains is multiplied into them, so that nobody else has to know of it. */
function folded(name: string, stored: Stored, config: ModelConfig, { gainOffset }: Naming): Tensor {
  const tensor = stored.renamed(name);
  const scale = name === 'norm' || name === 'norm.bias' ? config.logitScale : 1;
  const offset = /(^n|N)orm$|Post$/.test(name) ? gainOffset : 0;
  return scale === 1 && offset === 0 ? tensor : new Folded(tensor, scale, offset);
}

/** scale · (value + offset) of every value, rounded once. */
class Folded implements Tensor {
  readonly #tensor: Tensor;
  readonly #scale: number;
  readonly #offset: number;

  constructor(tensor: Tensor, scale: number, offset: number) {
    this.#tensor = tensor;
    this.#scale = scale;
    this.#offset = offset;
  }

  get name(): string {
    return this.#tensor.name;
  }

  get shape(): readonly number[] {
    return this.#tensor.shape;
  }

  get storedType(): string {
    return this.#tensor.storedType;
  }

  readFloat32(fromRow?: number, toRow?: number): Float32Array {
    return this.#tensor.readFloat32(fromRow, toRow).map((value) => this.#scale * (value + this.#offset));
  }
}

/** Tied models have one matrix at both ends, under either name. A second copy is not read. */
function tieEmbeddings(named: Map<string, Named>, config: ModelConfig): void {
  if (!config.tiedEmbeddings) return;
  const head = named.get('head');
  if (head !== undefined && !named.has('embed')) named.set('embed', head);
  named.delete('head');
}

function misshapen(file: string, tensor: string, shape: readonly number[], expected: readonly number[]): KvError {
  return bad(`tensor ${file} is [${shape}], the configuration needs [${expected}]`, { tensor, shape, expected });
}

function bad(what: string, values: Record<string, unknown>): KvError {
  return new KvError('bad-model', what, { values });
}

class NamedWeights implements WeightSource {
  readonly #tensors: ReadonlyMap<string, Tensor>;
  readonly #close: () => void;

  constructor(tensors: ReadonlyMap<string, Tensor>, close: () => void) {
    this.#tensors = tensors;
    this.#close = close;
  }

  has(name: string): boolean {
    return this.#tensors.has(name);
  }

  tensor(name: string): Tensor {
    const tensor = this.#tensors.get(name);
    if (tensor === undefined) throw bad(`the model has no tensor ${name}`, { tensor: name });
    return tensor;
  }

  close(): void {
    this.#close();
  }
}
