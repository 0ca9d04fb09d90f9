/** Decimal numbers as they are written, so that nothing is rounded. */

/** units · 10^−decimals. */
export interface Decimal {
  readonly units: bigint;
  readonly decimals: number;
}

export function decimalOf(value: number): Decimal {
  const [, sign, whole, fraction = '', exponent = '0'] = /^(-?)(\d+)(?:\.(\d+))?(?:e([+-]\d+))?$/.exec(String(value))!;
  const places = fraction.length - Number(exponent);
  const units = BigInt(`${sign}${whole}${fraction}`);
  return places >= 0 ? { units, decimals: places } : { units: units * 10n ** BigInt(-places), decimals: 0 };
}

/** True if the value is a whole number of steps, both as they are written. */
export function isMultiple(value: number, step: number): boolean {
  const [a, b] = [decimalOf(value), decimalOf(step)];
  const decimals = Math.max(a.decimals, b.decimals);
  const scaled = ({ units, decimals: own }: Decimal): bigint => units * 10n ** BigInt(decimals - own);
  return scaled(a) % scaled(b) === 0n;
}

/** A bound in units of 10^−places, rounded into the range. */
export function scaled({ units, decimals }: Decimal, places: number, isLeast: boolean, isOpen: boolean): bigint {
  if (places >= decimals) {
    const exact = units * 10n ** BigInt(places - decimals);
    return isOpen ? exact + (isLeast ? 1n : -1n) : exact;
  }
  const divisor = 10n ** BigInt(decimals - places);
  const down = units / divisor - (units < 0n && units % divisor !== 0n ? 1n : 0n);
  const isExact = down * divisor === units;
  if (isLeast) return isExact && !isOpen ? down : down + 1n;
  return isExact && isOpen ? down - 1n : down;
}
