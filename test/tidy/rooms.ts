/** Who may import whom. */
import { posix } from 'node:path';
import type { Import } from './source.ts';

/** Left to right: a room imports only rooms to its left. */
export const ROOMS = ['native', 'policy', 'memory', 'witness', 'engine'] as const;
/** A leaf: imports no room, and serves the rooms that keep SQL. */
const LEAF = 'migrations';
const LEAF_READERS: readonly string[] = ['memory', 'witness'];

const roomOf = (path: string): string => path.split('/')[0] ?? '';
const isRoom = (name: string): boolean => (ROOMS as readonly string[]).includes(name);

/** Modules for browsers, which can load no door of a room: the live page uses some of the report's. */
const isPage = (path: string): boolean => /^(witness\/report|engine\/serve)\/page\//.test(path);

/** → what is wrong with this import, or null. file: path of the importing module from the root. */
export function importProblem(file: string, { specifier, kind }: Import): string | null {
  const from = roomOf(file);
  if (!isRoom(from) && from !== LEAF) return null;
  if (!specifier.startsWith('.')) return null;
  const target = posix.normalize(posix.join(posix.dirname(file), specifier));
  const to = roomOf(target);
  if (isPage(file) && isPage(target) && to !== from) return null;
  if (to === from) return innerProblem(file, target);
  if (kind === 'url') return null; // a data file or a worker, not a module of another room
  if (target.startsWith('..')) return `leaves the repository: ${specifier}`;
  if (from === LEAF) return `migrations/ is a leaf and imports ${to}/`;
  if (to === LEAF) {
    return LEAF_READERS.includes(from) ? null : `only ${LEAF_READERS.join('/ and ')}/ may import migrations/`;
  }
  if (!isRoom(to)) return `a room imports ${to}/, which is no room`;
  const rooms = ROOMS as readonly string[];
  if (rooms.indexOf(to) > rooms.indexOf(from))
    return `${from}/ may not import ${to}/: rooms import only leftwards (${ROOMS.join(' ← ')})`;
  if (target !== `${to}/index.ts`) return `${to}/ is entered through ${to}/index.ts, not ${target}`;
  return null;
}

/**
 * → what is wrong with this import of a module that the package palimpsest-lab holds, or null: a published module
 * reaches the product by its door alone.
 */
export function labProblem(file: string, { specifier, kind }: Import, dependencies: readonly string[]): string | null {
  if (kind === 'url' || specifier === 'palimpsest/lab') return null;
  const name = packageOf(specifier);
  if (name !== null && !dependencies.includes(name)) return `${name} is not among the dependencies of lab/package.json`;
  if (!specifier.startsWith('.')) return null;
  const target = posix.normalize(posix.join(posix.dirname(file), specifier));
  return isPublishedLab(target)
    ? null
    : `what palimpsest-lab holds imports palimpsest/lab and its own modules, not ${target}`;
}

/** True if a module goes into the package palimpsest-lab; the rest of lab/ is the bench of the checkout. */
export const isPublishedLab = (path: string): boolean =>
  /^lab\/(methods\/|rules\/|token-cache\/|(index|register|formats)\.ts$)/.test(path);

/** The doors of the engine, which import all of its folders: the library, and what palimpsest-lab is made with. */
const DOORS: readonly string[] = ['index.ts', 'lab.ts'];

/** Folders of the engine, each with those that it may import. */
const ENGINE: Readonly<Record<string, readonly string[]>> = {
  transformer: [],
  sidecar: ['transformer'],
  packs: [],
  events: [],
  metrics: ['events'],
  options: ['transformer', 'events'],
  originals: ['options'],
  cache: ['transformer', 'packs', 'metrics', 'options', 'originals'],
  scheduler: ['transformer', 'metrics', 'cache'],
  state: ['events', 'options', 'cache'],
  adapters: ['transformer', 'state', 'cache'],
  store: ['state'],
  session: ['transformer', 'adapters', 'metrics', 'options', 'originals', 'cache', 'scheduler', 'state'],
  evaluate: ['transformer', 'options', 'cache', 'state', 'session'],
  calibrate: ['transformer', 'options', 'cache', 'session', 'evaluate'],
  trace: ['transformer', 'options', 'cache', 'session', 'evaluate'],
  thread: [
    'transformer',
    'adapters',
    'packs',
    'sidecar',
    'events',
    'metrics',
    'options',
    'cache',
    'scheduler',
    'state',
    'session',
    'evaluate',
  ],
  openai: ['transformer', 'options', 'cache', 'session', 'store', 'thread'],
  'ai-sdk': ['transformer', 'options', 'session', 'thread', 'openai'],
  langchain: ['transformer', 'options', 'thread', 'openai'],
  anthropic: ['transformer', 'openai'],
  ollama: ['transformer', 'openai'],
  serve: ['metrics', 'options', 'state', 'store', 'thread', 'openai', 'anthropic', 'ollama'],
  cli: [
    'originals',
    'transformer',
    'adapters',
    'events',
    'options',
    'cache',
    'state',
    'session',
    'evaluate',
    'calibrate',
    'trace',
    'thread',
    'sidecar',
    'openai',
    'store',
    'serve',
    'packs',
  ],
};

/** Folders within a folder of the engine, '' being what lies beside them, each with those that it may import. */
const WITHIN: Readonly<Record<string, Readonly<Record<string, readonly string[]>>>> = {
  transformer: {
    '': ['families', 'hub', 'template'],
    families: [''],
    template: [],
    hub: [''],
    convert: ['', 'families'],
    grammar: [''],
    sampling: ['', 'grammar'],
    runtime: ['', 'hub', 'grammar'],
  },
  session: { '': ['park'], park: [''], chat: ['', 'calls'] },
  serve: { '': ['page'], page: [] },
};

/**
 * The layers of a folder that is read from its first file to its last: a module imports its own layer and those before.
 * A name with a stroke behind it is a folder, the others are modules.
 */
type Layers = Readonly<Record<string, readonly string[]>>;

/** witness/, from bytes to whoever keeps a log for years. */
const WITNESS: Layers = {
  bytes: [
    ...[
      'canonical',
      'chain',
      'commitment',
      'crc32c',
      'tree',
      'chain-state',
      'segment',
      'files',
      'lock',
      'ring',
      'id',
      'series',
    ],
    ...['csv', 'gave-up-text', 'growth-text', 'idle-text', 'stated-text', 'words', 'pause'],
  ],
  checkpoints: ['note', 'checkpoint', 'against', 'anchor-file'],
  entries: [
    ...[
      'plan-numbers',
      'entries/',
      'plan',
      'types',
      'spell',
      'body',
      'forms',
      'entry',
      'mask',
      'pack-lists',
      'pack',
      'encryption',
      'run',
      'keys',
    ],
    ...['pool-series', 'trouble'],
  ],
  reading: ['scan', 'walk', 'read', 'survey'],
  proofs: ['verify', 'proof', 'sign-log'],
  questions: [
    ...[
      'condition',
      'count',
      'filter',
      'newest',
      'query',
      'explanation',
      'because-text',
      'foresight-text',
      'proposal-text',
      'gone-text',
      'activation-text',
      'explain-text',
      'explain',
      'told-forms',
      'form-states',
      'page-forms',
      'timeline',
    ],
    ...['replay-report', 'pool-replay', 'parking-replay', 'asked-for', 'asking-text'],
    ...[
      'why-not',
      'replay',
      'replay-close',
      'lineage',
      'receipt',
      'verify-receipt',
      'counterfactual',
      'known-before',
      'sql/',
      'audit',
      'report/',
    ],
  ],
  writing: [
    ...['batch', 'batch-queue', 'batch-files', 'recover', 'remove', 'anchor-targets', 'anchor', 'writer', 'log'],
  ],
  keeping: ['removals', 'erase', 'retention', 'rewrap'],
  door: ['index'],
};

/** scripts/: what programs are made of, and the programs. */
const SCRIPTS: Layers = {
  tools: ['processes', 'native-toolchain', 'cost', 'entries/', 'helpers/', 'bench/', 'compare/', 'market/'],
  parts: [
    'small-checkout',
    'staged-formats',
    'zig',
    'needs',
    'platform-packages',
    'tests',
    'build-lab',
    'roll-up-types',
  ],
  programs: [
    ...['bootstrap', 'ci', 'generate', 'generate-decisions', 'generate-documents', 'generate-entries'],
    ...['generate-layout', 'generate-migrations', 'generate-options', 'generate-tables', 'golden', 'golden-codecs'],
    ...[
      'golden-metrics',
      'build-native',
      'build-packs',
      'build-wasm',
      'golden-packs',
      'prebuild',
      'smoke-runtimes',
      'test-arm64',
      'test-elsewhere',
    ],
    ...['with-postgres', 'test-order', 'summary-reporter', 'calibrate', 'drift', 'fit-nuq', 'fit-trellis', 'full-disk'],
    ...['parked', 'sharers', 'sim', 'sim-pool', 'openai-schemas', 'fetch-texts', 'train-helpers'],
  ],
};

const LAYERED: Readonly<Record<string, Layers>> = { witness: WITNESS, scripts: SCRIPTS };

/** Folders within them whose modules are layers too. */
const LAYERED_WITHIN: Readonly<Record<string, Readonly<Record<string, readonly string[]>>>> = {
  'witness/report': { '': ['page'], page: [] },
  'scripts/bench': { '': ['peers'], peers: [''] },
};

/** The member of a table of layers that a module is or lies in: 'walk', 'sql/'. */
function memberOf(path: string): string {
  const [, first = '', inside] = path.split('/');
  return inside === undefined ? first.replace(/(\.d)?\.m?ts$|\.mjs$/, '') : `${first}/`;
}

/** Names of a layered folder that its table lacks, or that nothing in it has. files: all paths of the checkout. */
export function layerFaults(folder: string, files: readonly string[]): string[] {
  const known = Object.values(LAYERED[folder]!).flat();
  const there = new Set(files.filter((path) => path.startsWith(`${folder}/`) && /\.m?[tj]s$/.test(path)).map(memberOf));
  return [
    ...[...there].filter((name) => !known.includes(name)).map((name) => `${folder}/${name} is in no layer`),
    ...known.filter((name, at) => !there.has(name) || known.indexOf(name) !== at).map((name) => `no ${folder}/${name}`),
  ];
}

/** The folders whose modules lie in layers. */
export const LAYERED_FOLDERS: readonly string[] = Object.keys(LAYERED);

/** → what is wrong with an import within a layered folder, or null. */
export function layerProblem(file: string, target: string): string | null {
  const folder = roomOf(file);
  const layers = Object.entries(LAYERED[folder] ?? {});
  const [from, to] = [file, target].map(memberOf) as [string, string];
  if (from === to) return innerFolderProblem(file, target);
  const [at, toAt] = [from, to].map((name) => layers.findIndex(([, members]) => members.includes(name)));
  if (at === -1) return `${folder}/${from} is in no layer`;
  return toAt! <= at! ? null : `${from} (${layers[at!]![0]}) imports ${to} of a later layer (${layers[toAt!]![0]})`;
}

function innerFolderProblem(file: string, target: string): string | null {
  const folder = file.split('/').slice(0, 2).join('/');
  return foldersProblem(folder, LAYERED_WITHIN[folder] ?? {}, file, target);
}

const within = (path: string, folders: object): string => {
  const name = path.split('/')[2] ?? '';
  return name in folders ? name : '';
};
const listed = (names: readonly string[]): string =>
  names.length === 0 ? 'nothing else' : `only ${names.map((name) => name || 'the folder itself').join(', ')}`;

/** What is below knows nothing of what stands on it: inside the engine too. */
function innerProblem(file: string, target: string): string | null {
  const [room = '', from = ''] = file.split('/');
  const [, to = ''] = target.split('/');
  if (LAYERED[room] !== undefined) return layerProblem(file, target);
  if (room !== 'engine' || DOORS.includes(from)) return null;
  const imports = ENGINE[from];
  if (imports === undefined) return `engine/${from} lies in no folder that is known here`;
  if (from === to) return folderProblem(from, file, target);
  if (imports.includes(to)) return null;
  return `engine/${from}/ imports ${listed(imports)} of the engine, not ${to}`;
}

function folderProblem(folder: string, file: string, target: string): string | null {
  return foldersProblem(`engine/${folder}`, WITHIN[folder] ?? {}, file, target);
}

function foldersProblem(
  folder: string,
  folders: Readonly<Record<string, readonly string[]>>,
  file: string,
  target: string,
): string | null {
  const [from, to] = [within(file, folders), within(target, folders)];
  const imports = folders[from];
  if (imports === undefined || from === to || imports.includes(to)) return null;
  return `${folder}/${from} imports ${listed(imports)} of its folder, not ${to}`;
}

/** Name of the package that a bare specifier belongs to; null for Node's own modules and for relative paths. */
export function packageOf(specifier: string): string | null {
  if (specifier.startsWith('.') || specifier.startsWith('node:')) return null;
  return specifier
    .split('/')
    .slice(0, specifier.startsWith('@') ? 2 : 1)
    .join('/');
}

/** A room may import only what a user of the package gets; what is optional only where its absence can be told. */
export function packageProblem(
  { specifier, kind }: Import,
  manifest: {
    dependencies?: Record<string, string>;
    peerDependencies?: Record<string, string>;
    optionalDependencies?: Record<string, string>;
  },
): string | null {
  if (kind === 'url') return null;
  const name = packageOf(specifier);
  if (name === null || manifest.dependencies?.[name] !== undefined) return null;
  const isOptional = (manifest.peerDependencies?.[name] ?? manifest.optionalDependencies?.[name]) !== undefined;
  if (!isOptional) return `${name} is not among the dependencies of package.json`;
  return kind === 'value' ? `${name} is optional: use import type, and import() where it is needed` : null;
}

/**
 * The modules that are loaded together with `entries`, threads included: all that no import() stands before. importsOf:
 * of a file, by its path from the root.
 */
export function loadedAtOnce(entries: readonly string[], importsOf: (file: string) => readonly Import[]): Set<string> {
  const reached = new Set(entries);
  for (const file of reached)
    for (const { specifier, kind } of importsOf(file))
      if ((kind === 'value' || kind === 'url') && specifier.startsWith('.'))
        reached.add(posix.normalize(posix.join(posix.dirname(file), specifier)));
  return reached;
}

/** Modules that nothing reaches from the entries: dead files. edges: what each file imports, as paths from the root. */
export function unreached(
  files: readonly string[],
  entries: readonly string[],
  edges: ReadonlyMap<string, readonly string[]>,
): string[] {
  const seen = new Set<string>();
  const queue = [...entries];
  for (let file = queue.pop(); file !== undefined; file = queue.pop()) {
    if (seen.has(file)) continue;
    seen.add(file);
    queue.push(...(edges.get(file) ?? []));
  }
  return files.filter((file) => !seen.has(file));
}

/**
 * Groups of modules that import each other, each as its sorted names joined by commas (Tarjan's strongly connected
 * components).
 */
export function circles(edges: ReadonlyMap<string, readonly string[]>): string[] {
  const order = new Map<string, number>();
  const low = new Map<string, number>();
  const stack: string[] = [];
  const found: string[] = [];
  const visit = (file: string): number => {
    const index = order.size;
    order.set(file, index);
    low.set(file, index);
    stack.push(file);
    for (const next of edges.get(file) ?? []) {
      if (!edges.has(next)) continue;
      const reach = order.has(next) ? (stack.includes(next) ? order.get(next)! : index) : visit(next);
      low.set(file, Math.min(low.get(file)!, reach));
    }
    if (low.get(file) === index) {
      const group = stack.splice(stack.indexOf(file));
      if (group.length > 1 || (edges.get(file) ?? []).includes(file)) found.push(group.sort().join(', '));
    }
    return low.get(file)!;
  };
  for (const file of edges.keys()) if (!order.has(file)) visit(file);
  return found.sort();
}
