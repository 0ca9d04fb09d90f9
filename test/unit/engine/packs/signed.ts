/** Keys, trust files and signed packs for tests. */
import { createHash, createPrivateKey, type KeyObject } from 'node:crypto';
import { STATEMENT_TYPE, statementBytes, TRUST_TYPE, writeEnvelope } from '../../../../engine/packs/envelope.ts';
import type { PackFiles } from '../../../../engine/packs/folder.ts';
import { compareVersions, type PackManifest } from '../../../../engine/packs/manifest.ts';
import type { Trust } from '../../../../engine/packs/trust.ts';
import { keyIdOf, signBytes } from '../../../../memory/index.ts';
import { packageVersion } from '../../../../native/index.ts';

export interface Signer {
  readonly id: string;
  readonly publicKey: string;
  readonly key: KeyObject;
}

const PKCS8 = Buffer.from('302e020100300506032b657004220420', 'hex');

/** The key pair that follows from a name, so that failures repeat. */
export function signerOf(name: string): Signer {
  const seed = createHash('sha256').update(`a key for tests: ${name}`).digest();
  const key = createPrivateKey({ key: Buffer.concat([PKCS8, seed]), format: 'der', type: 'pkcs8' });
  const { publicKey } = signBytes(Buffer.of(), key);
  return { id: keyIdOf(publicKey), publicKey, key };
}

export const NOW_MS = Date.UTC(2030, 0, 1);
export const later = (days: number): string => new Date(NOW_MS + days * 86_400_000).toISOString();

export const ROOTS = [signerOf('root 1'), signerOf('root 2'), signerOf('root 3')] as const;
export const PACKERS = [signerOf('packs 1'), signerOf('packs 2')] as const;
/** Keys that the trust file has, and whose signatures do not count. */
export const EXPIRED = signerOf('expired');
export const REVOKED = signerOf('revoked');
export const UNKNOWN = signerOf('unknown');

const listed = ({ id, publicKey }: Signer, expires = later(365)) => ({ id, publicKey, expires });

/** Two of three keys sign trust files, one of two signs packs. */
export function trustWith(change: Partial<Trust> = {}): Trust {
  return {
    ...{ kind: 'palimpsest-trust', schemaVersion: 1, version: 1, expires: later(90) },
    keys: [...[...ROOTS, ...PACKERS, REVOKED].map((one) => listed(one)), listed(EXPIRED, later(-1))],
    roles: {
      root: { keys: ROOTS.map(({ id }) => id), threshold: 2 },
      packs: { keys: [...PACKERS, EXPIRED, REVOKED].map(({ id }) => id), threshold: 1 },
    },
    revoked: [REVOKED.id],
    minimum: {},
    allow: [{ name: 'example', versions: { from: '1.0.0', below: '2.0.0' } }],
    ...change,
  };
}

export const signTrust = (trust: unknown, signers: readonly Signer[] = ROOTS.slice(0, 2)): Buffer =>
  writeEnvelope(
    TRUST_TYPE,
    Buffer.from(JSON.stringify(trust)),
    signers.map(({ key }) => key),
  );

export const sha = (bytes: Uint8Array | string): string => createHash('sha256').update(bytes).digest('hex');

const nextMajor = `${Number(packageVersion().split('.')[0]) + 1}.0.0`;

/** A manifest as its signer would write it. */
export function manifestWith(change: Partial<PackManifest> = {}): PackManifest {
  const from = compareVersions(packageVersion(), '0.1.0') < 0 ? '0.0.0' : '0.1.0';
  return {
    ...{ kind: 'codec', name: 'example', version: '1.0.0', abi: 1, engine: { from, below: nextMajor } },
    ...{ features: ['simd128'], supersedes: [] },
    source: { sha256: sha('source'), builder: 'a test', packages: ['clang-14 1:14.0.6-12'], command: 'clang' },
    formats: [
      {
        ...{ name: 'ex4', side: 'both', bits: 4.5, errorMost: 0.2, known: null, fuelPerToken: 4000 },
        bytes: { elementBits: 4, tokenBytes: 4, channelBytes: 0, headBytes: 0 },
      },
    ],
    vectors: [
      {
        ...{ seed: 1, tokens: 8, dim: 64, queries: 1, fuel: { encode: 1, decode: 1, dots: 1, mix: 1 } },
        sha256: { page: sha('page'), decoded: sha('decoded'), dots: sha('dots'), mixed: sha('mixed') },
      },
    ],
    ...change,
  } as PackManifest;
}

/** The smallest module there is, with a note in it that makes one differ from another. */
export function moduleOf(note: string): Buffer {
  const name = Buffer.from('note');
  const text = Buffer.from(note);
  const section = Buffer.concat([Buffer.of(name.length), name, text]);
  return Buffer.concat([Buffer.from('0061736d01000000', 'hex'), Buffer.of(0, section.length), section]);
}

export interface Signed {
  readonly manifest?: PackManifest;
  readonly module?: Buffer;
  readonly signers?: readonly Signer[];
  readonly path?: string;
}

/** A pack with nothing wrong. */
export function packOf({ manifest = manifestWith(), signers = [PACKERS[0]], ...more }: Signed = {}): PackFiles {
  const { module = moduleOf(`${manifest.name} ${manifest.version}`), path = 'pack' } = more;
  const payload = statementBytes({ digest: sha(module), manifest });
  return {
    path,
    module,
    envelope: writeEnvelope(
      STATEMENT_TYPE,
      payload,
      signers.map(({ key }) => key),
    ),
  };
}
