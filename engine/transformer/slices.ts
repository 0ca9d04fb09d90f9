/**
 * Work that rests now and then, so that whoever does it can let others go on, and hear that nobody wants it any more.
 * It yields at places where it can rest, and returns its result.
 */
export type Slices<T> = Generator<void, T>;

/** Does it without a rest. */
export function atOnce<T>(work: Slices<T>): T {
  for (;;) {
    const step = work.next();
    if (step.done === true) return step.value;
  }
}

/** How long work goes on before others have their turn. Chosen, not measured: a frame of a screen. */
const TURN_MS = 16;

/** Does it in turns with whatever else this thread has to do. `onTurn` is called before each and may throw. */
export async function inTurns<T>(work: Slices<T>, onTurn: () => void): Promise<T> {
  for (let began = performance.now(); ; ) {
    const step = work.next();
    if (step.done === true) return step.value;
    if (performance.now() - began < TURN_MS) continue;
    await new Promise((resolve) => setImmediate(resolve));
    onTurn();
    began = performance.now();
  }
}
