/**
 * Engines that nobody closed do not keep a process that has nothing else to do: they are closed when it comes to its
 * end, so that what their sessions did is written down.
 */

interface Closable {
  close(): Promise<void>;
}

const open = new Set<Closable>();

function closeAll(): void {
  for (const engine of open) {
    open.delete(engine);
    // Nobody is left to be told otherwise.
    engine.close().catch((error: unknown) => process.emitWarning(error as Error));
  }
}

/** Closes it at the natural end of the process. */
export function closeAtEnd(engine: Closable): void {
  if (open.size === 0) process.on('beforeExit', closeAll);
  open.add(engine);
}

/** It was closed. */
export function isClosed(engine: Closable): void {
  open.delete(engine);
  if (open.size === 0) process.off('beforeExit', closeAll);
}
