/** One setting of the command line, and the values that settings have. */
import { InvalidArgumentError } from 'commander';

export interface Setting {
  /** In the notation of commander. Of two long flags the last one is the name of the setting. */
  readonly flags: string;
  readonly help: string;
  readonly default?: string | number | boolean;
  readonly choices?: readonly string[];
  readonly parse?: (text: string) => unknown;
}

const bounded = (least: number, most: number, whole: boolean) => (text: string) => {
  const value = Number(text);
  if (
    text.trim() === '' ||
    !Number.isFinite(value) ||
    value < least ||
    value > most ||
    (whole && !Number.isInteger(value))
  ) {
    throw new InvalidArgumentError(`expected ${whole ? 'a whole number' : 'a number'} from ${least} to ${most}.`);
  }
  return value;
};
export const whole = (least: number, most: number) => bounded(least, most, true);
export const real = (least: number, most: number) => bounded(least, most, false);
