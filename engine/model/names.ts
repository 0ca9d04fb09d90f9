/** Maps the tensor names of checkpoints to those that the engine asks for (types.ts), and checks every shape. */
import { KvError } from '../../native/index.ts';
import { expectedShapes } from './config.ts';
import type { Checkpoint, StoredTensor } from './stored-tensor.ts';
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
};
const GGUF_LAYER: Names = {
  'attn_norm.weight': 'attnNorm',
  'ffn_norm.weight': 'mlpNorm',
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
const IGNORED = /(^|\.)(rotary_emb\.inv_freq|attn_rot_embd\.weight)$|^rope_freqs\.weight$/;

function matrices(names: Names): Record<string, string> {
  return Object.fromEntries(
    Object.entries(names).flatMap(([ours, theirs]) => [
      [`${theirs}.weight`, ours],
      [`${theirs}.bias`, `${ours}.bias`],
    ]),
  );
}

/** The engine's name of a tensor of a Hugging Face checkpoint, null if it needs none, undefined if unknown. */
export const hfName = (name: string): string | null | undefined =>
  engineName(name, name.replace(/^model\./, ''), /^layers\.(0|[1-9]\d{0,4})\.(.+)$/, HF_TOP, HF_LAYER);

/** The same for GGUF. */
export const ggufName = (name: string): string | null | undefined =>
  engineName(name, name, /^blk\.(0|[1-9]\d{0,4})\.(.+)$/, GGUF_TOP, GGUF_LAYER);

type Names = Readonly<Record<string, string>>;

function engineName(name: string, bare: string, ofLayer: RegExp, top: Names, parts: Names): string | null | undefined {
  if (IGNORED.test(name)) return null;
  const layer = ofLayer.exec(bare);
  if (layer === null) return own(top, bare);
  const part = own(parts, layer[2]!);
  return part === undefined ? undefined : `${layer[1]}.${part}`;
}

function own(record: Names, key: string): string | undefined {
  return Object.hasOwn(record, key) ? record[key] : undefined;
}

/**
 * Names the tensors of a checkpoint and checks them against the configuration: none may be missing, misshapen or left over
 * (ignoring a tensor would silently change the model). Throws KvError 'bad-model' or 'unsupported'.
 */
export function nameTensors(
  checkpoint: Checkpoint,
  config: ModelConfig,
  nameOf: (name: string) => string | null | undefined,
): WeightSource {
  const named = new Map<string, { stored: StoredTensor; file: string }>();
  for (const [file, stored] of checkpoint.tensors) {
    const name = nameOf(file);
    if (name === undefined) {
      throw new KvError(
        'unsupported',
        `the checkpoint has a tensor ${file.slice(0, 120)}, which no served architecture knows`,
        { values: { tensor: file, architecture: config.architecture } },
      );
    }
    if (name === null) continue;
    const twin = named.get(name);
    if (twin !== undefined) throw bad(`${twin.file} and ${file} are the same tensor`, { tensor: name });
    named.set(name, { stored, file });
  }
  tieEmbeddings(named, config);
  const shapes = expectedShapes(config);
  for (const [name, shape] of shapes) {
    const found = named.get(name);
    if (found === undefined) throw bad(`tensor ${name} is missing`, { tensor: name, shape });
    if (found.stored.shape.join() !== shape.join()) {
      throw bad(`tensor ${found.file} is [${found.stored.shape}], the configuration needs [${shape}]`, {
        tensor: name,
        shape: found.stored.shape,
        expected: shape,
      });
    }
  }
  for (const [name, { file }] of named) {
    if (!shapes.has(name)) throw bad(`the configuration has no place for tensor ${file}`, { tensor: name });
  }
  return new NamedWeights(new Map([...named].map(([name, { stored }]) => [name, stored.renamed(name)])), () =>
    checkpoint.close(),
  );
}

/** Tied models have one matrix at both ends, under either name. A second copy is not read. */
function tieEmbeddings(named: Map<string, { stored: StoredTensor; file: string }>, config: ModelConfig): void {
  if (!config.tiedEmbeddings) return;
  const head = named.get('head');
  if (head !== undefined && !named.has('embed')) named.set('embed', head);
  named.delete('head');
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
