/**
 * Policies of one's own for sessions, whose policy runs in the model's thread: named by their module, which is imported
 * there. What it exports is checked before anything is opened. The log has its SHA-256, so that a replay can say
 * whether it was given the same.
 */
import { createHash } from 'node:crypto';
import { statSync } from 'node:fs';
import { createRequire } from 'node:module';
import { join, resolve } from 'node:path';
import { fileURLToPath, pathToFileURL } from 'node:url';
import { KvError, readRegular, show, unknownName, unlessAborted } from '../../native/index.ts';
import { type Policy, type PolicySession, policies } from '../../policy/index.ts';

/** Where a policy of one's own is. */
export interface PolicyModule {
  /**
   * An ES module: the path or `file:` URL of a file, or the name of a package that can be resolved from the working
   * folder.
   */
  readonly module: string;
  /** What it exports: a policy, or a function that makes one of `options`. Default 'default'. */
  readonly export?: string;
  /** Plain data for that function; the log has it, so that a replay makes the same policy. Default: none. */
  readonly options?: Readonly<Record<string, unknown>>;
}

/** What the log says of where a policy came from. */
export interface PolicyOrigin {
  /** The options that made it. */
  readonly options: Readonly<Record<string, unknown>>;
  /** Of its file, without what that imports. */
  readonly sha256: string;
  readonly export: string;
}

/** An export of a module, from which policies are made. */
export interface LoadedModule {
  readonly sha256: string;
  /** Throws 'bad-argument' for what is no policy of one's own. */
  make(options: Readonly<Record<string, unknown>>): Policy;
}

/** A source has some kilobytes, and a bundle some megabytes. */
const BYTES_MAX = 64 * 2 ** 20;
/** Longest wait for a module that waits for something itself. Chosen, not measured: most load in milliseconds. */
const LOAD_MS_MAX = 30_000;
const FIELDS = ['module', 'export', 'options'];
const HINT =
  "policy: { module: './my-policy.mjs', export: 'default', options: {} }; policy/README.md says what a policy is";

export function isPolicy(given: unknown): given is Policy {
  const { id, version, needsTrials, open } = (given ?? {}) as Partial<Policy>;
  return (
    typeof id === 'string' &&
    id !== '' &&
    Number.isInteger(version) &&
    typeof needsTrials === 'boolean' &&
    typeof open === 'function'
  );
}

const isPlainObject = (given: unknown): given is Readonly<Record<string, unknown>> =>
  typeof given === 'object' && given !== null && !Array.isArray(given);

/** True of what names a module, well or badly. */
export const isPolicyModule = (given: unknown): given is PolicyModule => isPlainObject(given) && 'module' in given;

/** Throws 'bad-argument' for what no module can be named by. */
export function checkModule(given: PolicyModule): void {
  const { module, export: name = 'default', options = {} } = given;
  const unknown = Object.keys(given).find((field) => !FIELDS.includes(field));
  if (unknown !== undefined) throw unknownName('bad-argument', 'a module of a policy has no field', unknown, FIELDS);
  if (module === '')
    throw new KvError('bad-argument', 'a policy is of a module that has no name', { values: { module }, hint: HINT });
  const wrong = [
    ...(typeof module === 'string' ? [] : [['module', show(module)]]),
    ...(typeof name === 'string' ? [] : [['export', show(name)]]),
    ...(isPlainObject(options) ? [] : [['options', show(options)]]),
  ];
  if (wrong.length === 0) return;
  throw new KvError('bad-argument', 'a policy of a module is { module, export, options }: two texts and plain data', {
    values: Object.fromEntries(wrong),
    hint: HINT,
  });
}

/** What was thrown, in words. Any value can be, and most objects say nothing of themselves. */
function thrownText(thrown: unknown): string {
  if (thrown instanceof Error) return thrown.message === '' ? thrown.name : thrown.message;
  const isThing = (typeof thrown === 'object' && thrown !== null) || typeof thrown === 'function';
  return `${isThing ? `something of type ${typeof thrown}` : show(thrown)} was thrown, which is no error`;
}

/** Throws 'not-found' where there is neither such a file nor such a package. */
function fileOf(module: string): string {
  if (module.startsWith('file:')) return fileURLToPath(module);
  const path = resolve(module);
  if (statSync(path, { throwIfNoEntry: false })?.isFile() === true) return path;
  try {
    return createRequire(join(process.cwd(), 'package.json')).resolve(module);
  } catch (cause) {
    throw new KvError('not-found', `there is no file and no package ${show(module)} for a policy`, {
      values: { module, path },
      hint: 'name the file of an ES module',
      cause,
    });
  }
}

/**
 * Imports a module, in this thread. Throws 'not-found', 'io', 'bad-argument'; the last also where it still waits for
 * something of its own after `msMax`.
 */
export async function loadPolicyModule(given: PolicyModule, msMax = LOAD_MS_MAX): Promise<LoadedModule> {
  checkModule(given);
  const { module, export: name = 'default' } = given;
  const refuse = (why: string, cause?: unknown): never => {
    throw new KvError('bad-argument', `the policy of module ${show(module)} cannot be used: ${why}`, {
      values: { module, export: name },
      hint: HINT,
      cause,
    });
  };
  const attempt = <T>(what: string, work: () => T): T => {
    try {
      return work();
    } catch (cause) {
      if (cause instanceof KvError) throw cause;
      return refuse(`${what} threw: ${thrownText(cause)}`, cause);
    }
  };
  const path = attempt('its address', () => fileOf(module));
  const sha256 = createHash('sha256')
    .update(readRegular(path, { bytesMax: BYTES_MAX, code: 'bad-argument' }))
    .digest('hex');
  const address = pathToFileURL(path);
  // A file that was changed is another module, and not the one that was imported before.
  address.searchParams.set('sha256', sha256);
  let exported: unknown;
  try {
    exported = (await within(msMax, import(address.href)))[name];
  } catch (cause) {
    refuse(`it does not load: ${thrownText(cause)}`, cause);
  }
  if (typeof exported !== 'function' && !isPolicy(exported))
    refuse(`its export '${name}' is no policy, an object { id, version, needsTrials, open }, and no function`);
  return {
    sha256,
    make: (options) => {
      if (typeof exported !== 'function' && Object.keys(options).length > 0)
        refuse(`its export '${name}' is a policy and no function, so it takes no options`);
      const policy = typeof exported === 'function' ? attempt('its function', () => exported(options)) : exported;
      // Nobody waits for a promise, so nobody else would hear that it was broken.
      if (policy instanceof Promise) policy.catch(() => {});
      if (!isPolicy(policy))
        return refuse('its function gives no policy, an object { id, version, needsTrials, open }');
      if (Object.hasOwn(policies, policy.id))
        refuse(`its id '${policy.id}' is that of a policy of this package, which logs would take it for`);
      const open: Policy['open'] = (context) =>
        heldTo(
          attempt('its open', () => policy.open(context)),
          attempt,
          refuse,
        );
      // One that is of a class keeps its own getters.
      const isPlain = Object.getPrototypeOf(policy) === Object.prototype;
      return isPlain ? { ...policy, open } : (Object.create(policy, { open: { value: open } }) as Policy);
    },
  };
}

/** The module, unless it has not loaded after so long; then it is left alone, since nothing ends an import. */
async function within(msMax: number, loading: Promise<unknown>): Promise<Readonly<Record<string, unknown>>> {
  const late = new AbortController();
  const timer = setTimeout(() => late.abort(), msMax);
  const says = (): Error => new Error(`what it waits for did not come within ${msMax} ms`);
  try {
    return (await unlessAborted(loading, late.signal, says)) as Readonly<Record<string, unknown>>;
  } finally {
    clearTimeout(timer);
  }
}

/** What a summary has. */
const SUMMARY = {
  numbers: ['priceThreshold', 'predictedKld'],
  lists: ['layerStates', 'layerEpsilonMax', 'layerKld'],
} as const;

/** What a session of a policy answers, as far as it must be there for anybody to read it. */
const ANSWERS: Readonly<Record<string, { readonly says: string; readonly holds: (answer: unknown) => boolean }>> = {
  decide: { says: 'a list', holds: Array.isArray },
  judge: {
    says: 'an object { accepted, because }',
    holds: (answer) =>
      isPlainObject(answer) && typeof answer['accepted'] === 'boolean' && isPlainObject(answer['because']),
  },
  summary: {
    says: `an object { ${[...SUMMARY.numbers, ...SUMMARY.lists].join(', ')} }`,
    holds: (answer) =>
      isPlainObject(answer) &&
      SUMMARY.numbers.every((name) => Number.isFinite(answer[name])) &&
      SUMMARY.lists.every((name) => Array.isArray(answer[name])),
  },
};

/** A session of a policy of the caller's own, whose faults are told as such and not as ours. */
function heldTo(
  session: PolicySession,
  attempt: <T>(what: string, work: () => T) => T,
  refuse: (why: string) => never,
): PolicySession {
  const lacking = Object.keys(ANSWERS).find((name) => typeof (session as never)?.[name] !== 'function');
  if (lacking !== undefined) return refuse(`its open gives no session: there is no ${lacking}`);
  return new Proxy({} as PolicySession, {
    get: (_, key) => {
      const value: unknown = Reflect.get(session, key);
      if (typeof value !== 'function') return value;
      return (...given: unknown[]): unknown => {
        const answer: unknown = attempt(`its ${String(key)}`, () => Reflect.apply(value, session, given));
        const must = Object.hasOwn(ANSWERS, key) ? ANSWERS[String(key)] : undefined;
        if (must !== undefined && !must.holds(answer)) refuse(`its ${String(key)} gives no answer, ${must.says}`);
        return answer;
      };
    },
  });
}

/** Options whose policy can be opened: by its name, or itself. */
export type Ready<Options> = Omit<Options, 'policy'> & {
  readonly policy?: string | Policy;
  readonly policyOrigin?: PolicyOrigin;
};

/**
 * Options as they were, with the policy itself in place of the module that it is in. `resting` waits for it where the
 * thread may be ended meanwhile. Throws what loading throws.
 */
export async function withPolicyModule<
  Options extends { readonly policy?: string | Policy | PolicyModule | undefined },
>(
  options: Options,
  resting: (work: () => Promise<LoadedModule>) => Promise<LoadedModule> = (work) => work(),
): Promise<Ready<Options>> {
  const { policy, ...rest } = options;
  if (policy === undefined) return rest;
  if (!isPolicyModule(policy)) return { ...rest, policy };
  const { sha256, make } = await resting(() => loadPolicyModule(policy));
  const { options: given = {}, export: name = 'default' } = policy;
  // What is logged is what the policy was made of: data alone, whatever the caller does to it later.
  const plain = plainCopy(given);
  return { ...rest, policy: make(plain), policyOrigin: { options: plain, sha256, export: name } };
}

function plainCopy(given: Readonly<Record<string, unknown>>): Readonly<Record<string, unknown>> {
  try {
    return JSON.parse(JSON.stringify(given)) as Readonly<Record<string, unknown>>;
  } catch (cause) {
    throw new KvError('bad-argument', 'options of a policy are plain data, as JSON has it', { hint: HINT, cause });
  }
}
