/** Worker threads that start from the built package and from TypeScript source alike. */
import { createRequire } from 'node:module';
import { pathToFileURL } from 'node:url';
import { Worker } from 'node:worker_threads';

/**
 * Starts a module of this project in a thread: `new URL('./some-worker.ts', import.meta.url)`, also when built. From
 * source the thread loads tsx first, by a line of JavaScript: on Node 20 `execArgv: ['--import', 'tsx']` reaches no
 * thread unless the process itself was started with it. Nothing is taken over from the flags of the process: some (`--input-type`, `-e`'s) mean its
 * main program and would end the thread.
 */
export function startThread(source: URL, workerData: unknown): Worker {
  const isBuilt = !import.meta.url.endsWith('.ts');
  if (isBuilt) return new Worker(new URL(source.href.replace(/\.ts$/, '.js')), { workerData, execArgv: [] });
  // `require` finds the CommonJS twin, which cannot register hooks from a data: module; the ES module stands beside it.
  const found = createRequire(import.meta.url).resolve('tsx/esm/api');
  const loader = pathToFileURL(found.replace(/\.cjs$/, '.mjs')).href;
  const script = `const { register } = await import(${JSON.stringify(loader)}); register(); await import(${JSON.stringify(source.href)});`;
  return new Worker(new URL(`data:text/javascript,${encodeURIComponent(script)}`), { workerData, execArgv: [] });
}
