/** Starts worker threads, both from the built package and from TypeScript sources. */
import { createRequire } from 'node:module';
import { pathToFileURL } from 'node:url';
import { Worker } from 'node:worker_threads';

/**
 * Starts a module of this project, `new URL('./some-worker.ts', import.meta.url)`, in a thread. Built code names the .ts file too. When
 * sources are run, a line of JavaScript loads tsx in the thread first, because on Node 20 `execArgv: ['--import', 'tsx']` has no effect
 * unless the process itself was started with it. The thread does not inherit the flags of the process, because some, such as
 * `--input-type`, are for the main program and would end the thread.
 */
export function startThread(source: URL, workerData: unknown): Worker {
  const isBuilt = !import.meta.url.endsWith('.ts');
  if (isBuilt) return new Worker(new URL(source.href.replace(/\.ts$/, '.js')), { workerData, execArgv: [] });
  // `require` finds the CommonJS version, which cannot register hooks from a data: module. The ES module is beside it.
  const found = createRequire(import.meta.url).resolve('tsx/esm/api');
  const loader = pathToFileURL(found.replace(/\.cjs$/, '.mjs')).href;
  const script = `const { register } = await import(${JSON.stringify(loader)}); register(); await import(${JSON.stringify(source.href)});`;
  return new Worker(new URL(`data:text/javascript,${encodeURIComponent(script)}`), { workerData, execArgv: [] });
}
