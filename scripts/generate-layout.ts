/**
 * Writes the files that are derived from native/layout.ts, native/formats/ and native/yardsticks/:
 *   native/formats/index.gen.ts   the list of the formats in those folders
 *   native/formats/index.gen.h    the families that the product computes, for the C++ code
 *   native/layout.gen.h           limits, statuses, instruction sets, operations and formats for the C++ code
 * With `--check` it writes nothing, and fails when a file differs. With `--into FOLDER MODULE…` it writes the headers
 * to FOLDER, with the yardsticks and the formats of those modules, for a build that computes more formats than the
 * package.
 */
import { existsSync, mkdirSync, readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { dirname, join, posix, resolve } from 'node:path';
import { pathToFileURL } from 'node:url';

const root = join(import.meta.dirname, '..');
const args = process.argv.slice(2);
const isCheck = args.includes('--check');
const into = args.indexOf('--into');
const modules = into < 0 ? [] : args.slice(into + 2);

/** Name of each family, and its module without an ending, relative to native/formats/: a family is a folder. */
const families = ['.', '../yardsticks']
  .flatMap((folder) =>
    readdirSync(join(root, 'native/formats', folder), { withFileTypes: true })
      .filter((entry) => entry.isDirectory())
      .map(({ name }) => [name, `${folder}/${name}/${name}`] as const),
  )
  .sort(([a], [b]) => (a < b ? -1 : 1));
const moduleOf = new Map(families);
const names = families.map(([name]) => name);

function put(file: string, text: string): void {
  if (existsSync(file) && readFileSync(file, 'utf8') === text) return;
  if (isCheck) {
    console.error(`${file} is stale: run npm run generate`);
    process.exitCode = 1;
    return;
  }
  mkdirSync(dirname(file), { recursive: true });
  writeFileSync(file, text);
}

const WRITTEN = '// Written by scripts/generate-layout.ts.';
const BUILT_IN = await Promise.all(
  families.map(async ([, module]) => (await import(`../native/formats/${module}.ts`)).formats),
);
const builtIn = (BUILT_IN as { name: string; window: boolean; rank: number }[][])
  .flat()
  .sort((a, b) => a.rank - b.rank);
const union = (list: { name: string }[]): string => list.map(({ name }) => `'${name}'`).join(' | ');
if (into < 0) {
  put(
    join(root, 'native/formats/index.gen.ts'),
    `${WRITTEN} Add a folder to this one, not a line to this file.
${families.map(([name, module]) => `import * as ${name} from '${module}.ts';`).join('\n')}

/** A format of one side of a page, best first: how its keys or values are stored. */
export type FormatName = ${union(builtIn)};
/** A format that a page may be sealed in, while it is in the window of the newest tokens. */
export type WindowName = ${union(builtIn.filter(({ window }) => window))};

export const FAMILIES = { ${names.join(', ')} } as const;
export const BUILT_IN_CODECS = { ${names.map((name) => `...${name}.codecs`).join(', ')} } as const;
`,
  );
}

// These are imported only now, because no format can be added once native/format.ts has been loaded.
const { registerFormats, serveYardsticks } = await import('../native/formats/registry.ts');
if (into >= 0) serveYardsticks();
for (const module of modules) await registerFormats(pathToFileURL(resolve(module)).href);
const served = (await import('../native/format.ts')).servedFamilies();
const { abi } = await import('../native/abi.ts');
const layout = await import('../native/layout.ts');

/** PAGE_TOKENS, no-memory, rot4 → PageTokens, NoMemory, Rot4. */
const camel = (name: string): string =>
  name
    .split(/[-_]/)
    .map((word) => word[0]!.toUpperCase() + (word === word.toUpperCase() ? word.slice(1).toLowerCase() : word.slice(1)))
    .join('');
const values = (prefix: string, list: readonly string[]): string =>
  list.map((name, i) => `k${prefix}${camel(name)} = ${i}`).join(', ');

const formats = served.flatMap(([, members]) => members);
const slots = Math.max(...formats.map(({ id }) => id)) + 1;
if (new Set(formats.map(({ id }) => id)).size < formats.length || slots > 64)
  throw new Error('format ids must differ and stay below 64');
const fieldsOf = ({ parts }: (typeof formats)[number]) =>
  parts.flatMap(({ fields }, part) => fields.map((field) => ({ part, ...field })));
const mask = (ids: readonly number[]): string =>
  `0x${ids.reduce((bits, id) => bits | (1n << BigInt(id)), 0n).toString(16)}ull`;
const sources = ({ from, rank }: (typeof formats)[number]): number[] =>
  formats.filter((other) => (from === 'better' ? other.rank < rank : from.includes(other.name))).map(({ id }) => id);

function steeringOf({ steered, rotated }: (typeof formats)[number]): string {
  if (steered === undefined) return 'kNoSteering';
  return steered === 'channels' ? 'kChannelPowers' : rotated ? 'kTurnedKeys' : 'kPlainKeys';
}

function formatLine(id: number): string {
  const at = served.findIndex(([, members]) => members.some((format) => format.id === id));
  const format = formats.find((one) => one.id === id);
  if (format === undefined) return '    {},';
  const fields = fieldsOf(format).map(
    ({ part, elementBits = 0, tokenBytes = 0, channelBytes = 0, headBytes = 0, kept = false }) =>
      `{${[part, elementBits, tokenBytes, channelBytes, headBytes, kept].join(', ')}}`,
  );
  const headDims = format.headDims === 'any' ? [] : format.headDims;
  return `    {.name = "${format.name}", .family = ${at}, .version = ${format.layoutVersion}, .codeBits = ${format.codeBits}, .isWindow = ${format.window}, .isNested = ${format.nested}, .steering = ${steeringOf(format)},
     .from = ${mask(sources(format))}, .headDims = {${headDims.join(', ')}}, .parts = ${format.parts.length}, .fields = ${fields.length}, .field = {${fields.join(', ')}}},`;
}

// What one knows of the fields of a member of a family, C++ knows of all of them but for the bits of an element and
// what a demotion keeps.
for (const [name, members] of served) {
  const likeness = (format: (typeof formats)[number]) =>
    JSON.stringify(fieldsOf(format).map((field) => ({ ...field, elementBits: undefined, kept: undefined })));
  if (new Set(members.map(likeness)).size > 1) throw new Error(`the formats of ${name} have different fields`);
}

const mostFields = Math.max(...formats.map((format) => fieldsOf(format).length));
const mostParts = Math.max(...formats.map(({ parts }) => parts.length));
const header = `${WRITTEN} Change native/layout.ts or native/formats/, not this file.
#pragma once
#include <cstddef>
#include <cstdint>

namespace palimpsest {

constexpr char kAbi[] = "${abi()}";

${Object.entries(layout.LIMITS)
  .map(([name, value]) => `constexpr int k${camel(name)} = ${value};`)
  .join('\n')}

enum Status : int { ${values(
  '',
  layout.STATUSES.map(({ name }) => name),
)} };
enum Isa : int { ${values('', layout.ISA_NAMES)} };
constexpr int kIsaCount = ${layout.ISA_NAMES.length};
constexpr Isa kIsasBestFirst[] = {${layout.ISAS_BEST_FIRST.map((name) => `k${camel(name)}`).join(', ')}};
enum LatentFormat : int { ${values('', layout.LATENT_NAMES)} };
constexpr int kLatentFormats = ${layout.LATENT_NAMES.length};
enum LatentOperation : int { ${Object.entries(layout.LATENT_OPERATIONS)
  .map(([name, id]) => `kLatent${camel(name)} = ${id}`)
  .join(', ')} };
constexpr int kLatentOperations = ${Object.keys(layout.LATENT_OPERATIONS).length};
enum OriginalOperation : int { ${Object.entries(layout.ORIGINAL_OPERATIONS)
  .map(([name, id]) => `kOriginal${camel(name)} = ${id}`)
  .join(', ')} };
constexpr int kOriginalOperations = ${Object.keys(layout.ORIGINAL_OPERATIONS).length};
enum KeptRowsOperation : int { ${Object.entries(layout.KEPT_ROWS_OPERATIONS)
  .map(([name, id]) => `kRows${camel(name)} = ${id}`)
  .join(', ')} };
constexpr int kKeptRowsOperations = ${Object.keys(layout.KEPT_ROWS_OPERATIONS).length};
enum DenseSlot : int { ${values('Dense', layout.DENSE_SLOTS)} };
constexpr int kDenseSlots = ${layout.DENSE_SLOTS.length};
enum DenseNorm : int { ${values('', layout.DENSE_NORMS)} };
constexpr int kDenseNorms = ${layout.DENSE_NORMS.length};
enum DenseFeature : int { ${layout.DENSE_FEATURES.map((name, bit) => `k${camel(name)} = ${1 << bit}`).join(', ')} };
constexpr int kDenseFeatures = ${(1 << layout.DENSE_FEATURES.length) - 1};
enum DenseForm : int { ${values(
  'Dense',
  layout.DENSE_FORMS.map(({ name }) => name),
)} };
struct DenseFormSizes {
  int bits;
  int blocks;
  int head;
  int scales;
};
constexpr DenseFormSizes kDenseForms[] = {${layout.DENSE_FORMS.map(({ bits, blocks, head, scales }) => `{${bits}, ${blocks}, ${head}, ${scales}}`).join(', ')}};
constexpr int kDenseFormCount = ${layout.DENSE_FORMS.length};
enum DenseType : int { ${values(
  'From',
  layout.DENSE_TYPES.map(({ name }) => name),
)} };
struct DenseTypeSizes {
  DenseForm form;
  int values;
  int bytes;
};
constexpr DenseTypeSizes kDenseTypes[] = {${layout.DENSE_TYPES.map(({ form, values, bytes }) => `{k${camel('Dense')}${camel(form)}, ${values}, ${bytes}}`).join(', ')}};
constexpr int kDenseTypeCount = ${layout.DENSE_TYPES.length};

enum FormatId : int { ${formats.map(({ name, id }) => `k${camel(name)} = ${id}`).join(', ')} };
constexpr int kFormatSlots = ${slots};
constexpr int kFieldsMax = ${mostFields};
constexpr int kPartsMax = ${mostParts};
// Numbers of the fields of a family.
${served
  .map(
    ([name, members]) =>
      `enum ${camel(name)}Field : int { ${values(
        camel(name),
        fieldsOf(members[0]!).map((field) => field.name),
      )} };`,
  )
  .join('\n')}

// What one head holds of one page: ${layout.PAGE_TOKENS} * d * elementBits / 8 + ${layout.PAGE_TOKENS} * tokenBytes + d
// * channelBytes + headBytes.
struct FieldLayout {
  int part;
  int elementBits;
  int tokenBytes;
  int channelBytes;
  int headBytes;
  bool isKept;  // a demotion on codes leaves it as it is
};
// Whether the codes of keys are chosen by queries, and in which basis.
enum Steered : uint8_t { kNoSteering, kPlainKeys, kTurnedKeys, kChannelPowers };
constexpr int kSteeredKinds = 4;
struct FormatLayout {
  const char* name;  // null: no format has this id
  int family;
  int version;
  int codeBits;
  bool isWindow;
  bool isNested;
  Steered steering;  // of its keys
  uint64_t from;    // ids that a page side may come from
  int headDims[8];  // none: any
  int parts;
  int fields;
  FieldLayout field[kFieldsMax];
};
constexpr FormatLayout kFormats[kFormatSlots] = {
${Array.from({ length: slots }, (_, id) => formatLine(id)).join('\n')}
};

}  // namespace palimpsest
`;
const target = into < 0 ? join(root, 'native') : args[into + 1]!;
put(join(target, 'layout.gen.h'), header);
put(
  join(target, 'formats/index.gen.h'),
  `${WRITTEN} Add a folder to this one, not a line to this file.
#pragma once
${served.map(([name]) => `#include "${posix.normalize(moduleOf.get(name) ?? `${name}/${name}`)}.h"`).join('\n')}

// Calls f with the family of a format. Numbers are checked where they come in (isFormat); any other is a fault of ours
// and ends the process.
template <class Call>
INLINE void withFormat(int format, const Call& f) {
  switch (format) {
${served
  .map(
    ([name, members]) =>
      `    ${members.map((format) => `case k${camel(format.name)}:`).join(' ')} return f(${camel(name)}{});`,
  )
  .join('\n')}
    default: __builtin_trap();
  }
}
${served
  .filter(([, members]) => members.some(({ nested }) => nested))
  .map(([name]) => `static_assert(HasDemote<${camel(name)}>, "a nested family is demoted on codes");`)
  .join('\n')}
`,
);
