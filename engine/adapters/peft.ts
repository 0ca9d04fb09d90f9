/**
 * A PEFT folder: adapter_config.json and adapter_model.safetensors, which holds lora_A and lora_B of each
 * module, and of DoRA lora_magnitude_vector.
 */
import { existsSync } from 'node:fs';
import { join } from 'node:path';
import { KvError } from '../../native/index.ts';
import { FileBytes } from '../transformer/bytes.ts';
import type { Family } from '../transformer/families/family.ts';
import { hfNaming } from '../transformer/names.ts';
import { readSafetensors } from '../transformer/safetensors.ts';
import {
  type AdapterFile,
  addHalf,
  badAdapter,
  checkPerOutput,
  type Factors,
  type Halves,
  rankOf,
  unservedAdapter,
} from './factors.ts';
import { type PeftConfig, readPeftConfig } from './peft-config.ts';

const PREFIX = 'base_model.model.';
const HALF = /^(.+)\.lora_(?:(A|B)\.weight|(magnitude_vector)(?:\.weight)?)$/;

/** family: of the model that it is read for. Throws 'not-found', 'bad-file', 'unsupported', 'io'. */
export function openPeft(dir: string, family: Family): AdapterFile {
  const config = readPeftConfig(dir);
  const path = join(dir, 'adapter_model.safetensors');
  if (!existsSync(path) && existsSync(join(dir, 'adapter_model.bin')))
    throw new KvError('unsupported', `${dir} has no adapter_model.safetensors`, {
      values: { path },
      hint: 'convert adapter_model.bin to safetensors',
    });
  const file = FileBytes.open(path);
  try {
    const factors = pairs(file, config);
    const { invocation } = config;
    const of = { format: 'PEFT', path, factors, naming: hfNaming(family), interleaved: false, invocation } as const;
    return { ...of, close: () => file.close() };
  } catch (error) {
    file.close();
    throw error;
  }
}

function pairs(file: FileBytes, config: PeftConfig): Map<string, Factors> {
  const halves: Halves = new Map();
  for (const [name, tensor] of readSafetensors(file)) {
    const [, module, half] = HALF.exec(name) ?? [];
    if (module === undefined || !module.startsWith(PREFIX))
      throw unservedAdapter(file.path, 'the tensor', name.slice(0, 200));
    addHalf(halves, module.slice(PREFIX.length), half === undefined ? 'magnitudes' : half === 'A' ? 'a' : 'b', tensor);
  }
  const factors = new Map<string, Factors>();
  for (const [module, pair] of halves) {
    const rank = rankOf(file.path, module, pair);
    const told = config.of(module);
    if (told.rank !== rank)
      throw badAdapter(file.path, `${module} has rank ${rank}, and adapter_config.json says ${told.rank}`, {
        module,
        rank,
        expected: told.rank,
      });
    const { magnitudes } = pair;
    if ((magnitudes !== undefined) !== config.isDora)
      throw badAdapter(file.path, `${module} has ${config.isDora ? 'no' : 'a'} lora_magnitude_vector`, {
        module,
        use_dora: config.isDora,
      });
    checkPerOutput(file.path, module, pair.b!, magnitudes);
    factors.set(`${module}.weight`, { file: module, a: pair.a!, b: pair.b!, scale: told.scale, magnitudes });
  }
  return factors;
}
