/** The Lloyd-Max quantizer of N(0,1), derived from the density, to check the shipped tables against. */

const density = (x: number): number => Math.exp((-x * x) / 2) / Math.sqrt(2 * Math.PI);

/** Integrals of φ and x·φ over one cell, by Simpson's rule (the tail is cut at 12, where φ is 1e-32). */
function moments(from: number, to: number): { mass: number; first: number } {
  const low = Math.max(from, -12);
  const high = Math.min(to, 12);
  const steps = 400;
  const h = (high - low) / steps;
  let mass = 0;
  let first = 0;
  for (let i = 0; i <= steps; i++) {
    const x = low + i * h;
    const weight = i === 0 || i === steps ? 1 : i % 2 === 1 ? 4 : 2;
    mass += weight * density(x);
    first += weight * x * density(x);
  }
  return { mass: (mass * h) / 3, first: (first * h) / 3 };
}

/** All 2^bits levels, ascending, by iterating to the fixed point. */
export function gaussianLevels(bits: number): number[] {
  const count = 2 ** bits;
  let levels = Array.from({ length: count }, (_, i) => -3 + (6 * (i + 0.5)) / count);
  for (let round = 0; round < 10_000; round++) {
    const edges = [-Infinity, ...levels.slice(1).map((level, i) => (levels[i]! + level) / 2), Infinity];
    const next = levels.map((_, i) => {
      const { mass, first } = moments(edges[i]!, edges[i + 1]!);
      return first / mass;
    });
    const moved = Math.max(...next.map((level, i) => Math.abs(level - levels[i]!)));
    levels = next;
    if (moved < 1e-9) break;
  }
  return levels;
}

/** Mean squared error on N(0,1) of any levels and bounds, and E[x·x̂], E[x̂²]. */
export function gaussianError(
  levels: readonly number[],
  bounds: readonly number[],
): { mse: number; cross: number; power: number } {
  const edges = [-Infinity, ...bounds, Infinity];
  let cross = 0;
  let power = 0;
  for (const [i, level] of levels.entries()) {
    const { mass, first } = moments(edges[i]!, edges[i + 1]!);
    cross += level * first;
    power += level * level * mass;
  }
  return { mse: 1 - 2 * cross + power, cross, power };
}
