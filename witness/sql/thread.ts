/** Worker threads that start from the built package and from TypeScript source alike. */
import { createRequire } from 'node:module';
import { pathToFileURL } from 'node:url';
import { Worker } from 'node:worker_threads';

/**
 * Starts the module `name` (without extension, relative to `base`, an import.meta.url) in a thread. From source the
 * thread loads tsx first, by a line of JavaScript: on Node 20 `execArgv: ['--import', 'tsx']` reaches no thread unless
 * the process itself was started with it.
 */
export function startThread(name: string, base: string, workerData: unknown): Worker {
  if (!base.endsWith('.ts')) return new Worker(new URL(`${name}.js`, base), { workerData });
  const entry = new URL(`${name}.ts`, base).href;
  // `require` finds the CommonJS twin, which cannot register hooks from a data: module; the ES module stands beside it.
  const loader = pathToFileURL(
    createRequire(base)
      .resolve('tsx/esm/api')
      .replace(/\.cjs$/, '.mjs'),
  ).href;
  const source = `const { register } = await import(${JSON.stringify(loader)}); register(); await import(${JSON.stringify(entry)});`;
  return new Worker(new URL(`data:text/javascript,${encodeURIComponent(source)}`), { workerData, execArgv: [] });
}
