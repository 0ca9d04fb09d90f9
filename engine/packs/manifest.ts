/**
 * What a pack says of itself: the predicate of its signed statement (envelope.ts). Everything here is data that the
 * host compares with what the module does; nothing of it is believed before the contract tests have seen it.
 */
import { z } from 'zod';
import { KvError } from '../../native/index.ts';

/** The only interface between host and module that there is so far. */
export const PACK_ABI = 1;
/** Most bytes of a module: what is inspected, instrumented and compiled takes memory in proportion. */
export const MODULE_BYTES_MAX = 1024 * 1024;

const FUEL_MAX = 2 ** 40;

/** A name that is a name in every file system, and no path. */
export const packName = z
  .string()
  .max(40)
  .regex(/^[a-z][a-z0-9]*(-[a-z0-9]+)*$/, 'lower case letters and digits, with single dashes between them');

/** A version without additions: each of its numbers below a million. */
export const packVersion = z
  .string()
  .max(20)
  .regex(/^(0|[1-9]\d{0,5})\.(0|[1-9]\d{0,5})\.(0|[1-9]\d{0,5})$/, 'a version has three numbers');

export const sha256Hex = z.string().regex(/^[0-9a-f]{64}$/, 'not a SHA-256 in hex');

const line = z
  .string()
  .max(300)
  .regex(/^\P{Cc}*$/u, 'control characters are not allowed');

/** Versions from one on and below another. */
export const versionRange = z.strictObject({ from: packVersion, below: packVersion });

const dim = z.int().min(1).max(512);
const fuel = z.int().min(1).max(FUEL_MAX);
const seed = z
  .int()
  .min(0)
  .max(2 ** 32 - 1);
const shape = { seed, tokens: z.int().min(1).max(129), dim };

/** Bytes of a page of T tokens and D channels: ⌈T·D·elementBits ÷ 8⌉ + T·tokenBytes + D·channelBytes + headBytes. */
const bytesFormula = z.strictObject({
  /** In steps of 1/64, which hold scales of blocks. */
  elementBits: z
    .number()
    .min(0)
    .max(64)
    .multipleOf(1 / 64),
  tokenBytes: z.int().min(0).max(4096),
  channelBytes: z.int().min(0).max(4096),
  headBytes: z.int().min(0).max(65_536),
});

const packFormat = z.strictObject({
  name: packName,
  side: z.enum(['k', 'v', 'both']),
  /** Bits of a value, as lists show them: its codes with a share of what stands beside them. */
  bits: z.number().positive().max(64),
  bytes: bytesFormula,
  /** The most that a row differs from what its codes decode to, as a share of the row (L2 norms). */
  errorMost: z.number().min(0).max(1),
  /** The format of ours whose codes it promises, bit for bit; null: its own. */
  known: z.enum(['q8']).nullable(),
  /** The most fuel that a token takes in any call: of a head with 128 channels, and for one query. */
  fuelPerToken: fuel,
});

/** What the codec makes of rows that follow from a seed, with the exact fuel of each call. */
const codecVector = z.strictObject({
  ...shape,
  queries: z.int().min(1).max(64),
  sha256: z.strictObject({ page: sha256Hex, decoded: sha256Hex, dots: sha256Hex, mixed: sha256Hex }),
  fuel: z.strictObject({ encode: fuel, decode: fuel, dots: fuel, mix: fuel }),
});

const packKernel = z.strictObject({
  /** The kernel of ours whose bits it promises. */
  name: z.enum(['rope']),
  fuelPerToken: fuel,
});

const kernelVector = z.strictObject({
  ...shape,
  /** Parameters of the kernel for each token. */
  width: z.int().min(0).max(4096),
  sha256: z.strictObject({ applied: sha256Hex }),
  fuel: z.strictObject({ apply: fuel }),
});

/** What both kinds of packs have. */
const common = {
  name: packName,
  version: packVersion,
  abi: z.literal(PACK_ABI),
  /** Versions of this package that it was made for. */
  engine: versionRange,
  /** WebAssembly features beyond the first version that the module uses. */
  features: z
    .array(z.enum(['simd128', 'bulk-memory', 'sign-extension', 'mutable-globals', 'nontrapping-fptoint']))
    .max(8),
  source: z.strictObject({
    /** Of the file or archive that the module was built from. */
    sha256: sha256Hex,
    /** Who built it, with which packages, by which command. */
    builder: line,
    packages: z.array(line).max(16),
    command: line,
  }),
  /** Digests of modules whose place it takes. */
  supersedes: z.array(sha256Hex).max(64),
};

export const codecManifest = z.strictObject({
  kind: z.literal('codec'),
  ...common,
  /** One: the calls of a module name no format. */
  formats: z.array(packFormat).length(1),
  vectors: z.array(codecVector).min(1).max(256),
});

export const kernelManifest = z.strictObject({
  kind: z.literal('elementwise'),
  ...common,
  kernels: z.array(packKernel).length(1),
  vectors: z.array(kernelVector).min(1).max(256),
});

export const packManifest = z.discriminatedUnion('kind', [codecManifest, kernelManifest]);

/** What a pack says of itself. */
export type PackManifest = z.infer<typeof packManifest>;
export type CodecManifest = z.infer<typeof codecManifest>;
export type KernelManifest = z.infer<typeof kernelManifest>;
export type PackFormat = z.infer<typeof packFormat>;
export type PackKernel = z.infer<typeof packKernel>;
export type CodecVector = z.infer<typeof codecVector>;
export type KernelVector = z.infer<typeof kernelVector>;
export type VersionRange = z.infer<typeof versionRange>;

/** Bytes of a page of a format, by its own formula. */
export const pageBytesOf = ({ bytes }: Pick<PackFormat, 'bytes'>, tokens: number, dim: number): number =>
  Math.ceil((tokens * dim * bytes.elementBits) / 8) +
  tokens * bytes.tokenBytes +
  dim * bytes.channelBytes +
  bytes.headBytes;

/** The name of a format as sessions, parked files and the log have it: two modules of one name are two formats. */
export const packFormatName = (name: string, digest: string): string => `pack:${name}@${digest.slice(0, 12)}`;

/** Below 0: the first is older. */
export function compareVersions(a: string, b: string): number {
  const [left, right] = [a, b].map((version) => version.split('.').map(Number)) as [number[], number[]];
  return left[0]! - right[0]! || left[1]! - right[1]! || left[2]! - right[2]!;
}

export const isWithin = (version: string, { from, below }: VersionRange): boolean =>
  compareVersions(version, from) >= 0 && compareVersions(version, below) < 0;

/** Reads a manifest. Throws 'bad-file' naming the field. */
export function readManifest(value: unknown, what: string): PackManifest {
  const parsed = packManifest.safeParse(value);
  if (!parsed.success) throw badField(what, parsed.error);
  return parsed.data;
}

/** The first fault that a schema found, as an error that names its field. */
export function badField(what: string, { issues }: z.ZodError): KvError {
  const { path, message } = issues[0]!;
  return new KvError('bad-file', `${what}: ${path.join('.') || 'top level'}: ${message.slice(0, 200)}`, {
    values: { what, field: path.join('.') },
  });
}
