/**
 * Ways to make a pack or a trust file that must not be taken, each from random numbers, with the code of the refusal.
 * All but the last few have a good signature somewhere, or nearly.
 */
import { mkdirSync, symlinkSync, truncateSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { preAuthentication, STATEMENT_TYPE, TRUST_TYPE, writeEnvelope } from '../../../../engine/packs/envelope.ts';
import type { PackFiles } from '../../../../engine/packs/folder.ts';
import { signBytes } from '../../../../memory/index.ts';
import type { KvErrorCode } from '../../../../native/index.ts';
import {
  EXPIRED,
  later,
  manifestWith,
  moduleOf,
  PACKERS,
  packOf,
  REVOKED,
  ROOTS,
  type Signer,
  sha,
  signTrust,
  trustWith,
  UNKNOWN,
} from './signed.ts';

export type Random = () => number;

/** One attempt: what lies in the folder that is installed, or a trust file. */
export interface Attempt {
  readonly codes: readonly KvErrorCode[];
  /** Writes it, below a folder of its own. → the path to install */
  readonly write: (dir: string) => string;
}

type Maker = (random: Random) => Attempt;

const pick = <T>(random: Random, list: readonly T[]): T => list[Math.floor(random() * list.length)]!;
const below = (random: Random, count: number): number => Math.floor(random() * count);

function folder(files: Readonly<Record<string, string | Uint8Array>>): (dir: string) => string {
  return (dir) => {
    mkdirSync(dir, { recursive: true });
    for (const [name, bytes] of Object.entries(files)) writeFileSync(join(dir, name), bytes);
    return dir;
  };
}

const pack = ({ envelope, module }: Pick<PackFiles, 'envelope' | 'module'>, ...codes: KvErrorCode[]): Attempt => ({
  codes,
  write: folder({ 'pack.json': envelope, 'module.wasm': module }),
});

const trust = (bytes: Uint8Array, ...codes: KvErrorCode[]): Attempt => ({
  codes,
  write: (dir) => join(folder({ 'trust.json': bytes })(dir), 'trust.json'),
});

interface Dsse {
  payloadType: string;
  payload: string;
  signatures: { keyid: string; sig: string }[];
}
const parsed = (bytes: Buffer): Dsse => JSON.parse(bytes.toString()) as Dsse;
const bytesOf = (value: unknown): Buffer => Buffer.from(JSON.stringify(value));
const [packer] = PACKERS;

/** A pack of some version, with another note in its module each time. */
function good(random: Random, signers: readonly Signer[] = [packer]): PackFiles {
  const version = `1.${1 + below(random, 999)}.${below(random, 1000)}`;
  return packOf({ manifest: manifestWith({ version }), module: moduleOf(`${random()}`), signers });
}

/** The envelope of a pack, changed after it was signed. */
const changed = (random: Random, change: (envelope: Dsse) => unknown): PackFiles => {
  const files = good(random);
  return { ...files, envelope: bytesOf(change(parsed(files.envelope))) };
};

/** A statement as somebody writes it by hand, well signed. */
const stated = (random: Random, text: string | ((plain: string) => string)): PackFiles => {
  const files = good(random);
  const plain = Buffer.from(parsed(files.envelope).payload, 'base64').toString();
  const payload = Buffer.from(typeof text === 'string' ? text : text(plain));
  return { ...files, envelope: writeEnvelope(STATEMENT_TYPE, payload, [packer.key]) };
};

const signedBy = (signer: Signer, bytes: Uint8Array): { keyid: string; sig: string } => ({
  keyid: signer.id,
  sig: Buffer.from(signBytes(bytes, signer.key).value, 'hex').toString('base64'),
});

const flipped = (random: Random, bytes: Buffer): Buffer => {
  const copy = Buffer.from(bytes);
  const at = below(random, copy.length);
  copy[at] = copy[at]! ^ (1 << below(random, 8));
  return copy;
};

const withManifest = (random: Random, change: Readonly<Record<string, unknown>>): PackFiles => {
  const files = good(random);
  const statement = JSON.parse(Buffer.from(parsed(files.envelope).payload, 'base64').toString()) as {
    predicate: Record<string, unknown>;
  };
  const text = JSON.stringify({ ...statement, predicate: { ...statement.predicate, ...change } });
  return { ...files, envelope: writeEnvelope(STATEMENT_TYPE, Buffer.from(text), [packer.key]) };
};

const next = (change: Parameters<typeof trustWith>[0], signers?: readonly Signer[]): Buffer =>
  signTrust(trustWith({ version: 2, ...change }), signers);

/** Kinds of attempts on packs by what somebody got wrong, or hoped for. */
export const PACK_ATTEMPTS: Readonly<Record<string, Maker>> = {
  'a signature of the payload alone': (random) =>
    pack(
      changed(random, (one) => ({ ...one, signatures: [signedBy(packer, Buffer.from(one.payload, 'base64'))] })),
      'bad-signature',
    ),
  'a wrong pre-authentication': (random) =>
    pack(
      changed(random, (one) => {
        const payload = Buffer.from(one.payload, 'base64');
        const right = preAuthentication(STATEMENT_TYPE, payload);
        const wrong = pick(random, [
          Buffer.concat([Buffer.from('DSSEv2'), right.subarray(6)]),
          Buffer.from(right.toString('latin1').replace(` ${payload.length} `, ' '), 'latin1'),
          preAuthentication(STATEMENT_TYPE, Buffer.from(one.payload)),
          preAuthentication('application/json', payload),
        ]);
        return { ...one, signatures: [signedBy(packer, wrong)] };
      }),
      'bad-signature',
    ),
  'another payload type': (random) =>
    pack(
      changed(random, (one) => ({
        ...one,
        payloadType: pick(random, ['application/json', TRUST_TYPE, `${STATEMENT_TYPE} `, STATEMENT_TYPE.toUpperCase()]),
      })),
      'bad-signature',
    ),
  'a trust file in the place of a statement': (random) =>
    pack({ ...good(random), envelope: signTrust(trustWith(), [packer]) }, 'bad-signature'),
  'a signature over the same JSON, serialized again': (random) =>
    pack(
      changed(random, (one) => {
        const value = JSON.parse(Buffer.from(one.payload, 'base64').toString()) as unknown;
        return { ...one, payload: Buffer.from(JSON.stringify(value, null, 1 + below(random, 3))).toString('base64') };
      }),
      'bad-signature',
    ),
  'a payload with a bit changed': (random) =>
    pack(
      changed(random, (one) => ({
        ...one,
        payload: flipped(random, Buffer.from(one.payload, 'base64')).toString('base64'),
      })),
      'bad-signature',
    ),
  'a signature with a bit changed': (random) =>
    pack(
      changed(random, ({ signatures: [one], ...rest }) => ({
        ...rest,
        signatures: [{ ...one, sig: flipped(random, Buffer.from(one!.sig, 'base64')).toString('base64') }],
      })),
      'bad-signature',
    ),
  'no signature': (random) =>
    pack(
      changed(random, (one) => ({ ...one, signatures: [] })),
      'bad-file',
    ),
  'an unknown key': (random) => pack(good(random, [UNKNOWN]), 'bad-signature'),
  'an expired key': (random) => pack(good(random, [EXPIRED]), 'bad-signature'),
  'a revoked key': (random) => pack(good(random, [REVOKED]), 'bad-signature'),
  'a key of the root': (random) => pack(good(random, [pick(random, ROOTS)]), 'bad-signature'),
  'the id of one key with the signature of another': (random) =>
    pack(
      changed(random, (one) => {
        const signed = preAuthentication(STATEMENT_TYPE, Buffer.from(one.payload, 'base64'));
        return { ...one, signatures: [{ ...signedBy(UNKNOWN, signed), keyid: packer.id }] };
      }),
      'bad-signature',
    ),
  'a good signature beside a wrong one of a known key': (random) =>
    pack(
      changed(random, ({ signatures, ...rest }) => ({
        ...rest,
        signatures: [...signatures, signedBy(PACKERS[1], Buffer.from('something else'))],
      })),
      'bad-signature',
    ),
  'base64 in another spelling': (random) =>
    pack(
      changed(random, (one) =>
        pick(random, [
          { ...one, payload: `${one.payload}\n` },
          { ...one, payload: ` ${one.payload}` },
          { ...one, payload: `${one.payload.replace(/=+$/, '')}====` },
        ]),
      ),
      'bad-file',
    ),
  'a key of the envelope twice': (random) => {
    const files = good(random);
    const text = files.envelope.toString();
    const name = pick(random, ['payload', 'payloadType', 'signatures']);
    return pack({ ...files, envelope: Buffer.from(text.replace('{', `{"${name}":"",`)) }, 'bad-file');
  },
  'a key of the statement twice': (random) => {
    const name = pick(random, ['subject', '_type', 'predicate', 'predicateType']);
    return pack(
      stated(random, (plain) => plain.replace('{', `{"${name}":[],`)),
      'bad-file',
    );
  },
  'a key of the manifest twice, once escaped': (random) =>
    pack(
      stated(random, (plain) => plain.replace('"version":', '"\\u0076ersion":"9.9.9","version":')),
      'bad-file',
    ),
  '__proto__ in the statement': (random) => {
    const name = pick(random, ['__proto__', 'constructor', 'prototype', '\\u005f_proto__']);
    return pack(
      stated(random, (plain) =>
        plain.replace(pick(random, ['"predicate":{', '"source":{']), (at) => `${at}"${name}":{},`),
      ),
      'bad-file',
    );
  },
  '__proto__ in the envelope': (random) => {
    const files = good(random);
    const envelope = Buffer.from(files.envelope.toString().replace('{', '{"__proto__":{"payload":""},'));
    return pack({ ...files, envelope }, 'bad-file');
  },
  'a field that nobody knows': (random) =>
    pack(withManifest(random, { [pick(random, ['extra', 'code', 'wasi', 'imports'])]: random() }), 'bad-file'),
  'a field that makes no sense': (random) =>
    pack(
      withManifest(
        random,
        pick(random, [
          { name: '../../etc' },
          { name: 'Example' },
          { name: '' },
          { version: '1.0' },
          { version: '1.0.0-rc.1' },
          { version: '01.0.0' },
          { abi: 2 },
          { kind: 'attention' },
          { formats: [] },
          { vectors: [] },
          { supersedes: ['x'] },
          { features: ['threads'] },
          { engine: { from: '0.1.0' } },
        ]),
      ),
      'bad-file',
    ),
  'a version of the engine that is not this one': (random) =>
    pack(withManifest(random, { engine: { from: '97.0.0', below: `98.${below(random, 99)}.0` } }), 'unsupported'),
  'the digest of another module': (random) =>
    pack({ ...good(random), module: moduleOf(`${random()}`) }, 'checksum-mismatch'),
  'a module with a bit changed': (random) => {
    const files = good(random);
    return pack({ ...files, module: flipped(random, files.module) }, 'checksum-mismatch');
  },
  'two subjects, or none': (random) => {
    const subject = pick(random, [0, 2, 3]);
    return pack(
      stated(random, (plain) => {
        const statement = JSON.parse(plain) as { subject: unknown[] };
        const [one] = statement.subject;
        return JSON.stringify({ ...statement, subject: Array.from({ length: subject }, () => one) });
      }),
      'bad-file',
    );
  },
  'a subject that is a path': (random) => {
    const name = pick(random, [
      '../module.wasm',
      '/etc/passwd',
      'module.wasm\\u0000',
      './module.wasm',
      'a/module.wasm',
      '',
    ]);
    return pack(
      stated(random, (plain) => plain.replace('"name":"module.wasm"', `"name":"${name}"`)),
      'bad-file',
    );
  },
  'a statement that is no JSON': (random) =>
    pack(
      stated(
        random,
        pick(random, [
          '',
          '{',
          'null',
          '[]',
          '{}',
          '\u0000',
          '"statement"',
          '1e999',
          `${'['.repeat(200)}${']'.repeat(200)}`,
        ]),
      ),
      'bad-file',
    ),
  'an envelope that is no JSON': (random) => {
    const { module } = good(random);
    const envelope = pick(random, ['', '{}', '[]', 'null', '\ufeff{}', '{"payload":']);
    return pack({ module, envelope: Buffer.from(envelope) }, 'bad-file');
  },
  'a name that is not allowed': (random) =>
    pack(withManifest(random, { name: `other-${below(random, 99)}` }), 'bad-signature'),
  'a version that is not allowed': (random) =>
    pack(withManifest(random, { version: pick(random, ['0.9.9', '2.0.0', '10.0.0']) }), 'bad-signature'),
  'a version below the floor': (random) =>
    pack(withManifest(random, { version: `1.0.${below(random, 5)}` }), 'bad-signature'),
  'another module of an installed version': (random) => {
    const module = moduleOf(`${random()}`);
    return pack(packOf({ manifest: manifestWith({ version: '1.0.5' }), module }), 'bad-signature');
  },
  'a revoked module': () => pack(packOf({ manifest: manifestWith({ version: '1.5.5' }) }), 'bad-signature'),
  'a file beside it': (random) => {
    const { envelope, module } = good(random);
    const name = pick(random, ['README', '.hidden', 'module2.wasm', 'pack.json.bak', 'package.json']);
    return { codes: ['bad-file'], write: folder({ 'pack.json': envelope, 'module.wasm': module, [name]: 'x' }) };
  },
  'a file too few': (random) => {
    const { envelope, module } = good(random);
    const files = pick<Record<string, Uint8Array>>(random, [{ 'pack.json': envelope }, { 'module.wasm': module }, {}]);
    return { codes: ['bad-file'], write: folder(files) };
  },
  'a link in the place of a file': (random) => {
    const { envelope, module } = good(random);
    const linked = pick(random, ['pack.json', 'module.wasm']);
    return {
      codes: ['bad-file'],
      write(dir) {
        folder({ 'pack.json': envelope, 'module.wasm': module })(`${dir}-real`);
        mkdirSync(dir);
        for (const name of ['pack.json', 'module.wasm'])
          if (name === linked) symlinkSync(join(`${dir}-real`, name), join(dir, name));
          else writeFileSync(join(dir, name), name === 'pack.json' ? envelope : module);
        return dir;
      },
    };
  },
  'a folder in the place of a file': (random) => ({
    codes: ['bad-file'],
    write(dir) {
      folder({ 'module.wasm': good(random).module })(dir);
      mkdirSync(join(dir, 'pack.json'));
      return dir;
    },
  }),
  'a file of a gigabyte': (random) => {
    const name = pick(random, ['pack.json', 'module.wasm']);
    const { envelope, module } = good(random);
    return {
      codes: ['bad-file'],
      write(dir) {
        folder({ 'pack.json': envelope, 'module.wasm': module })(dir);
        // It takes no room on the disk.
        truncateSync(join(dir, name), 2 ** 30);
        return dir;
      },
    };
  },
};

const signer = ({ id, publicKey }: Signer) => ({ id, publicKey, expires: later(365) });

/** The same for the trust file that follows another. */
export const TRUST_ATTEMPTS: Readonly<Record<string, Maker>> = {
  'a root that skips a version': (random) => trust(next({ version: 3 + below(random, 9) }), 'bad-signature'),
  'a root that goes back': () => trust(next({ version: 1 }), 'bad-signature'),
  'too few signatures': (random) => trust(next({}, [pick(random, ROOTS)]), 'bad-signature'),
  'two signatures of one key': (random) => {
    const one = pick(random, ROOTS);
    const bytes = parsed(next({}, [one]));
    return trust(bytesOf({ ...bytes, signatures: [...bytes.signatures, ...bytes.signatures] }), 'bad-signature');
  },
  'keys of packs in the place of keys of the root': () => trust(next({}, PACKERS), 'bad-signature'),
  'its own new keys alone': (random) => {
    const root = { keys: [UNKNOWN.id, ...ROOTS.map(({ id }) => id)], threshold: 1 };
    const keys = [...trustWith().keys, signer(UNKNOWN)];
    return trust(
      next({ keys, roles: { ...trustWith().roles, root } }, [UNKNOWN, ...(random() < 0.5 ? [ROOTS[0]] : [])]),
      'bad-signature',
    );
  },
  'the old keys alone': () => {
    const root = { keys: [UNKNOWN.id], threshold: 1 };
    const keys = [...trustWith().keys, signer(UNKNOWN)];
    return trust(next({ keys, roles: { ...trustWith().roles, root } }), 'bad-signature');
  },
  'a key under the id of another': () => {
    const keys = trustWith().keys.map((one, at) => (at === 0 ? { ...one, publicKey: UNKNOWN.publicKey } : one));
    return trust(next({ keys }), 'bad-file');
  },
  'a key twice': () => trust(next({ keys: [...trustWith().keys, signer(ROOTS[0])] }), 'bad-file'),
  'a role with a key twice': () => {
    const root = { keys: [ROOTS[0].id, ROOTS[0].id], threshold: 2 };
    return trust(next({ roles: { ...trustWith().roles, root } }), 'bad-file');
  },
  'a threshold that nobody reaches': (random) => {
    const root = { ...trustWith().roles.root, threshold: 4 + below(random, 9) };
    return trust(next({ roles: { ...trustWith().roles, root } }), 'bad-file');
  },
  'a threshold of none': () => {
    const root = { ...trustWith().roles.root, threshold: 0 };
    return trust(next({ roles: { ...trustWith().roles, root } }), 'bad-file');
  },
  'what has expired': (random) => trust(next({ expires: later(-1 - below(random, 99)) }), 'bad-signature'),
  'a time that is none': (random) =>
    trust(
      next({ expires: pick(random, ['never', '2031', '2031-01-01', '9999999', '2031-13-01T00:00:00.000Z']) }),
      'bad-file',
    ),
  'a statement in its place': (random) => trust(good(random).envelope, 'bad-signature'),
  'a key twice in its JSON': () => {
    const payload = Buffer.from(JSON.stringify(trustWith({ version: 2 })).replace('{', '{"revoked":[],'));
    return trust(
      writeEnvelope(
        TRUST_TYPE,
        payload,
        ROOTS.map(({ key }) => key),
      ),
      'bad-file',
    );
  },
  '__proto__ among the minimums': () => {
    const payload = Buffer.from(
      JSON.stringify(trustWith({ version: 2 })).replace('"minimum":{', '"minimum":{"__proto__":"1.0.0"'),
    );
    return trust(
      writeEnvelope(
        TRUST_TYPE,
        payload,
        ROOTS.map(({ key }) => key),
      ),
      'bad-file',
    );
  },
  'a field that nobody knows': () => {
    const payload = bytesOf({ ...trustWith({ version: 2 }), timestamp: 1 });
    return trust(
      writeEnvelope(
        TRUST_TYPE,
        payload,
        ROOTS.map(({ key }) => key),
      ),
      'bad-file',
    );
  },
};

/** A statement that is good, of a digest that the trust file revokes. */
export const REVOKED_MODULE = sha(packOf({ manifest: manifestWith({ version: '1.5.5' }) }).module);
