/** Damage to bytes and to JSON, from random numbers: what is done to a valid input before a parser gets it. */
import { bytes, one, type Random, whole } from './case.ts';

export type Mutation = (content: Buffer, random: Random) => Buffer;

const INPUT_BYTES_MAX = 64 * 1024;
const EXTREMES: readonly bigint[] = [0, 1, 7, 8, 15, 16, 20, 24, 31, 32, 40, 53, 62, 63, 64].flatMap((bits) => {
  const power = 2n ** BigInt(bits);
  return [power - 1n, power, power + 1n].map((number) => BigInt.asUintN(64, number));
});

const at = (content: Buffer, random: Random): number => whole(random, 0, Math.max(0, content.length - 1));

const flipBits: Mutation = (content, random) => {
  const changed = Buffer.from(content);
  for (let count = whole(random, 1, 6); count > 0 && changed.length > 0; count--)
    changed[at(changed, random)]! ^= 1 << whole(random, 0, 7);
  return changed;
};

/** Counts, lengths and offsets stand at the beginning as a rule, in two, four or eight bytes. */
const extremeNumber: Mutation = (content, random) => {
  const changed = Buffer.from(content);
  const width = one(random, [1, 2, 4, 8]);
  const number = Buffer.alloc(8);
  number.writeBigUInt64LE(one(random, EXTREMES));
  const end = Math.min(changed.length, one(random, [64, 1024, changed.length])) - width;
  if (end < 0) return changed;
  number.copy(changed, whole(random, 0, end), 0, width);
  return changed;
};

/** A number that stands there, a little larger or smaller. */
const nearNumber: Mutation = (content, random) => {
  const changed = Buffer.from(content);
  if (changed.length < 8) return changed;
  const place = whole(random, 0, changed.length - 8);
  const by = BigInt(one(random, [1, -1, 8, -8, 256, -256]));
  if (random() < 0.5) changed.writeBigUInt64LE(BigInt.asUintN(64, changed.readBigUInt64LE(place) + by), place);
  else changed.writeUInt32LE(Number(BigInt.asUintN(32, BigInt(changed.readUInt32LE(place)) + by)), place);
  return changed;
};

const cut: Mutation = (content, random) => content.subarray(0, at(content, random));
const grow: Mutation = (content, random) => Buffer.concat([content, bytes(random, whole(random, 1, 600))]);

const splice: Mutation = (content, random) => {
  const [from, length, to] = [at(content, random), whole(random, 1, 96), at(content, random)];
  const piece = random() < 0.2 ? bytes(random, length) : content.subarray(from, from + length);
  const removed = one(random, [0, length, whole(random, 0, 96)]);
  return Buffer.concat([content.subarray(0, to), piece, content.subarray(to + removed)]);
};

const fill: Mutation = (content, random) => {
  const place = at(content, random);
  return Buffer.from(content).fill(
    one(random, [0, 255, 0x22, 0x7b]),
    place,
    Math.min(content.length, place + whole(random, 1, 600)),
  );
};

const noise: Mutation = (content, random) =>
  Buffer.from(bytes(random, whole(random, 0, random() < 0.9 ? content.length : INPUT_BYTES_MAX)));

export const BINARY: readonly Mutation[] = [
  flipBits,
  extremeNumber,
  extremeNumber,
  nearNumber,
  cut,
  grow,
  splice,
  fill,
  noise,
];

const VALUES: readonly string[] = [
  ...['-1', '0', '-0', '0.5', '1e308', '1e999', '4294967296', '9007199254740993', '1e9', '-1e-400'],
  ...[
    'null',
    'true',
    '""',
    '"8"',
    '[]',
    '{}',
    '[null]',
    '[[]]',
    '{"__proto__":{"polluted":1}}',
    '{"toString":null,"valueOf":7}',
    '"\\u0000\\u001b[2J"',
  ],
  ...[
    '"__proto__"',
    '"constructor"',
    `"${'x'.repeat(5000)}"`,
    `${'['.repeat(500)}${']'.repeat(500)}`,
    '"../../x"',
    'NaN',
  ],
];

/** Another value in the place of a number, a text, a list or a name. */
const oddValue: Mutation = (content, random) => {
  const text = content.toString('latin1');
  const pattern = one(random, [
    /-?\d+(\.\d+)?([eE][+-]?\d+)?/g,
    /-?\d+(\.\d+)?([eE][+-]?\d+)?/g,
    /"[^"\\]*"/g,
    /\[[^[\]]*\]/g,
    /"[^"\\]*"(?=:)/g,
  ]);
  const found = [...text.matchAll(pattern)];
  if (found.length === 0) return flipBits(content, random);
  const { index, 0: old } = one(random, found);
  return Buffer.from(text.slice(0, index) + one(random, VALUES) + text.slice(index + old.length), 'latin1');
};

/** A member that is there twice, that no object should have, or of another object. */
const oddMember: Mutation = (content, random) => {
  const text = content.toString('latin1');
  const members = [...text.matchAll(/"[^"\\]*":("[^"\\]*"|-?[\d.eE+-]+|true|false|null|\[[^[\]]*\]|\{[^{}]*\})/g)];
  const objects = [...text.matchAll(/\{/g)];
  if (members.length === 0 || objects.length === 0) return flipBits(content, random);
  const { index } = one(random, objects);
  const member =
    random() < 0.3
      ? `"${one(random, ['__proto__', 'constructor', 'toString', ''])}":${one(random, VALUES)}`
      : one(random, members)[0];
  return Buffer.from(`${text.slice(0, index + 1)}${member},${text.slice(index + 1)}`, 'latin1');
};

export const JSON_TEXT: readonly Mutation[] = [
  oddValue,
  oddValue,
  oddMember,
  oddMember,
  flipBits,
  cut,
  splice,
  fill,
  noise,
];

/** One to three changes. */
export function damaged(content: Buffer, mutations: readonly Mutation[], random: Random): Buffer {
  let changed = content;
  for (let count = one(random, [1, 1, 1, 2, 3]); count > 0; count--) changed = one(random, mutations)(changed, random);
  return Buffer.from(changed.subarray(0, Math.max(content.length, INPUT_BYTES_MAX)));
}
