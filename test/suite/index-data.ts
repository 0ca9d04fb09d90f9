/** Seeded data of the index suite; apart from the tests, so that a child process can make the same. */

/** splitmix32 to [0, 1): seeded, so that a failure repeats. */
export function random(seed: number): () => number {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x9e3779b9) >>> 0;
    let z = state;
    z = Math.imul(z ^ (z >>> 16), 0x21f0aaad);
    z = Math.imul(z ^ (z >>> 15), 0x735a2d97);
    return ((z ^ (z >>> 15)) >>> 0) / 2 ** 32;
  };
}

/** Points around `clusters` centres, as workloads come in kinds. */
export function clustered(count: number, dim: number, clusters: number, seed: number): number[][] {
  const next = random(seed);
  const centres = Array.from({ length: clusters }, () => Array.from({ length: dim }, () => next()));
  return Array.from({ length: count }, () => {
    const centre = centres[Math.floor(next() * clusters)]!;
    return centre.map((x) => x + 0.1 * (next() + next() - 1));
  });
}
