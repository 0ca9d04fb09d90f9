/** Starts worker threads, both from the built package and from TypeScript sources. */
import { existsSync } from 'node:fs';
import { createRequire } from 'node:module';
import { pathToFileURL } from 'node:url';
import { type ResourceLimits, Worker } from 'node:worker_threads';
import { KvError } from './error.ts';
import { registeredModules, servesYardsticks, yardstickModule } from './formats/registry.ts';

/** The folder that is the root of compiled modules, where threads take theirs from there although sources are run. */
let compiledRoot: URL | null = null;

/**
 * From now on threads start from compiled modules below `root`, which must be those of these sources: for tests, whose
 * threads would else spend a second and a half each on reading TypeScript.
 */
export function startThreadsFrom(root: URL): void {
  compiledRoot = root;
}

/** The compiled module of a source, or null where there is none. */
function compiledOf(source: URL): URL | null {
  const sources = new URL('../', import.meta.url).href;
  if (compiledRoot === null || !source.href.startsWith(sources)) return null;
  const compiled = new URL(source.href.slice(sources.length).replace(/\.ts$/, '.js'), compiledRoot);
  return existsSync(compiled) ? compiled : null;
}

/** A module of this project as a process of its own can run it. */
export interface RunnableModule {
  readonly url: URL;
  /** What has to be imported before it; null: it is JavaScript. */
  readonly loader: URL | null;
}

/** → the built module of a source, or the source and what loads TypeScript. Built code names the .ts file too. */
export function runnableModule(source: URL): RunnableModule {
  if (!import.meta.url.endsWith('.ts')) return { url: new URL(source.href.replace(/\.ts$/, '.js')), loader: null };
  const compiled = compiledOf(source);
  if (compiled !== null) return { url: compiled, loader: null };
  return { url: source, loader: pathToFileURL(createRequire(import.meta.url).resolve('tsx')) };
}

/**
 * Starts a module of this project, `new URL('./some-worker.ts', import.meta.url)`, in a thread. Built code names the
 * .ts file too. When sources are run, a line of JavaScript loads tsx in the thread first, because on Node 20 `execArgv:
 * ['--import', 'tsx']` has no effect unless the process itself was started with it. The thread does not inherit the
 * flags of the process, because some, such as `--input-type`, are for the main program and would end the thread.
 * Formats and yardsticks that this thread has registered are registered there too. limits: of its heap.
 */
export function startThread(source: URL, workerData: unknown, limits: ResourceLimits = {}): Worker {
  const isBuilt = !import.meta.url.endsWith('.ts');
  const module = isBuilt ? new URL(source.href.replace(/\.ts$/, '.js')) : source;
  const formats = registeredModules();
  const isProduct = formats.length === 0 && !servesYardsticks();
  const compiled = !isBuilt && isProduct ? compiledOf(source) : null;
  if (compiled !== null) return open(compiled, workerData, limits);
  if (isBuilt && isProduct) return open(module, workerData, limits);
  const lines: string[] = [];
  if (!isBuilt) {
    // `require` finds the CommonJS version, which cannot register hooks from a data: module. The ES module is beside
    // it.
    const found = createRequire(import.meta.url).resolve('tsx/esm/api');
    const loader = pathToFileURL(found.replace(/\.cjs$/, '.mjs')).href;
    lines.push(`const { register } = await import(${JSON.stringify(loader)}); register();`);
  }
  if (!isProduct) {
    const registry = new URL(`./formats/registry.${isBuilt ? 'js' : 'ts'}`, import.meta.url).href;
    lines.push(
      `const { registerFormats, serveYardsticks } = await import(${JSON.stringify(registry)});`,
      `serveYardsticks(${JSON.stringify(yardstickModule())});`,
    );
    for (const format of formats) lines.push(`await registerFormats(${JSON.stringify(format)});`);
  }
  lines.push(`await import(${JSON.stringify(module.href)});`);
  return open(new URL(`data:text/javascript,${encodeURIComponent(lines.join('\n'))}`), workerData, limits);
}

/**
 * Where new objects of a thread live. V8 lets this grow to 48 MiB a thread under load and gives little of it back, and
 * collecting it more often takes no processor time that could be measured (docs/benchmarks.md, load).
 */
const YOUNG_MB = 6;

/** Throws 'bad-argument' for data that no thread can be given: functions, symbols. */
function open(module: URL, workerData: unknown, resourceLimits: ResourceLimits): Worker {
  try {
    const limits = { maxYoungGenerationSizeMb: YOUNG_MB, ...resourceLimits };
    return new Worker(module, { workerData, execArgv: [], resourceLimits: limits });
  } catch (cause) {
    throw new KvError('bad-argument', `what was given cannot be sent to a thread: ${(cause as Error).message}`, {
      hint: 'options are plain data',
      cause,
    });
  }
}
