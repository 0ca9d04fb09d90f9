/**
 * Formats that somebody has fixed: one K:V pair for all layers (`fixed`), one per layer (`table`), or none at all
 * (`none`, where every page keeps the window's format). A page side goes to its format as soon as it leaves the window.
 */
import { type FormatName, isFormatName, KvError, type Side } from '../../native/index.ts';
import { rank } from '../ladder.ts';
import type { Policy, PolicyContext } from '../types.ts';
import { checkPair } from '../unsafe.ts';
import { followPolicy, widthBecause } from './follow.ts';

type Pair = Readonly<Record<Side, FormatName>>;

/** `pair` is asked once per layer, with the context, so that what does not fit is refused when the session opens. */
function table(id: string, pair: (layer: number, context: PolicyContext) => Pair, rows: number | null): Policy {
  return followPolicy(id, 1, (context) => {
    if (rows !== null && rows !== context.layers) {
      throw new KvError('bad-config', `a table of ${rows} layers for a model of ${context.layers}`, {
        values: { rows, layers: context.layers },
        hint: 'give one { k, v } per layer',
      });
    }
    const pairs = Array.from({ length: context.layers }, (_, layer) => pair(layer, context));
    for (const { k, v } of pairs) {
      if (context.pageBytes[k] === undefined || context.pageBytes[v] === undefined) {
        throw new KvError('unsupported', `${k}:${v} is not among the formats of this session`, {
          values: { k, v, known: Object.keys(context.pageBytes).join(', ') },
          hint: `name it in the cache types: ${k}:${v}`,
        });
      }
      if (Math.min(rank(k), rank(v)) < rank(context.windowFormat)) {
        throw new KvError(
          'unsupported',
          `pages cannot become ${k}:${v} when the window is ${context.windowFormat}: no page is ever made finer`,
          {
            values: { k, v, windowFormat: context.windowFormat },
            hint: 'use an f16 window, or q8 and coarser formats',
          },
        );
      }
    }
    return {
      steer: () => false,
      target: (layer) => pairs[layer]!,
      because: (decision) => widthBecause(decision, `${id}.${decision.side}`, 'option', id),
    };
  });
}

/** Every page that leaves the window goes to this pair. Throws 'bad-config', 'unsupported'. */
export function fixedPolicy(options: unknown): Policy {
  const pair = readPair(options, 'options of policy fixed');
  return table('fixed', () => pair, null);
}

/** options: { layers: [{ k, v }, …] }, one row per layer. Throws 'bad-config', 'unsupported'. */
export function tablePolicy(options: unknown): Policy {
  const rows = (options as { layers?: unknown } | null)?.layers;
  if (!Array.isArray(rows) || rows.length === 0 || rows.length > 4096 || Object.keys(options as object).length !== 1) {
    throw new KvError('bad-config', "policy 'table' needs { layers: [{ k, v }, …] }", {
      hint: 'give one { k, v } per layer',
    });
  }
  const pairs = rows.map((row, layer) => readPair(row, `layer ${layer} of policy table`));
  return table('table', (layer) => pairs[layer]!, pairs.length);
}

/** Nothing ever moves. */
export const nonePolicy: Policy = table(
  'none',
  (_layer, { windowFormat }) => ({ k: windowFormat, v: windowFormat }),
  null,
);

function readPair(value: unknown, what: string): Pair {
  const { k, v, ...rest } = (typeof value === 'object' && value !== null ? value : {}) as Readonly<
    Record<string, unknown>
  >;
  if (
    typeof k !== 'string' ||
    typeof v !== 'string' ||
    !isFormatName(k) ||
    !isFormatName(v) ||
    Object.keys(rest).length > 0
  ) {
    throw new KvError('bad-config', `${what}: not a pair of formats { k, v }`, {
      values: { k, v, others: Object.keys(rest) },
      hint: 'for example { "k": "rot4", "v": "rot2" }',
    });
  }
  checkPair(k, v);
  return { k, v };
}
