/** Seeded data of the index suite; apart from the tests, so that a child process can make the same. */
import { seeded } from '../random.ts';

/** Points around `clusters` centres, as workloads come in kinds. */
export function clustered(count: number, dim: number, clusters: number, seed: number): number[][] {
  const next = seeded(seed);
  const centres = Array.from({ length: clusters }, () => Array.from({ length: dim }, () => next()));
  return Array.from({ length: count }, () => {
    const centre = centres[Math.floor(next() * clusters)]!;
    return centre.map((x) => x + 0.1 * (next() + next() - 1));
  });
}
