/** One setting of the command line, and the values that settings have. */
import { InvalidArgumentError } from 'commander';
import { whole as wholeNumber } from '../../native/index.ts';

export interface Setting {
  /** In the notation of commander. Of two long flags the last one is the name of the setting. */
  readonly flags: string;
  readonly help: string;
  readonly default?: string | number | boolean;
  readonly choices?: readonly string[];
  readonly parse?: (text: string) => unknown;
}

/** A whole number from `least` to `most`, of a setting that is no option of the library. */
export const whole = (least: number, most: number) => {
  const { schema, says } = wholeNumber(least, most);
  return (text: string): number => {
    const read = schema.safeParse(text.trim() === '' ? Number.NaN : Number(text));
    if (!read.success) throw new InvalidArgumentError(`expected ${says}.`);
    return read.data;
  };
};
