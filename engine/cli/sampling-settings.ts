/** Options of sampling from their settings: those that are texts on the command line, and no texts in the library. */
import { given, KvError } from '../../native/index.ts';
import { SAMPLING_OPTIONS, type SamplingOptions } from '../transformer/sampling/options.ts';
import { optionsOf } from './option-settings.ts';

type Settings = Partial<Record<string, unknown>>;

/** Throws 'bad-argument' for a bias that cannot be read. */
export const samplingOptions = (settings: Settings): SamplingOptions =>
  given<SamplingOptions>({
    ...optionsOf<SamplingOptions>(settings, SAMPLING_OPTIONS),
    drySequenceBreakers: breakers(settings['drySequenceBreaker'] as string[] | undefined),
    logitBias: biases(settings['logitBias'] as string[] | undefined),
  });

const breakers = (texts: readonly string[] | undefined): readonly string[] | undefined =>
  texts?.length === 1 && texts[0] === 'none' ? [] : texts;

function biases(texts: readonly string[] | undefined): Readonly<Record<number, number>> | undefined {
  if (texts === undefined) return undefined;
  return Object.fromEntries(
    texts.map((text) => {
      const [, id, bias] = /^(\d{1,9})([+-]\d+(?:\.\d+)?|-inf)$/.exec(text) ?? [];
      if (id === undefined)
        throw new KvError('bad-argument', `--logit-bias ${text}: this is no token id and bias`, {
          values: { given: text },
          hint: '15043+1, 15043-1.5, or 2-inf for never; palimpsest inspect MODEL says how many tokens there are',
        });
      return [Number(id), bias === '-inf' ? -Infinity : Number(bias)];
    }),
  );
}
