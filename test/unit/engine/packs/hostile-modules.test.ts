// Modules that are made to harm: are those refused that may not be, and those stopped or found out that do what they
// may not? Each is a small module whose one difference from a sound one is what is tried. What runs away is stopped by
// fuel, which is a number and no time.
import { describe, expect, it } from 'vitest';
import { tryContract } from '../../../../engine/packs/contract-cases.ts';
import { PackInstance } from '../../../../engine/packs/instance.ts';
import { instrumentModule, unsigned } from '../../../../engine/packs/instrument.ts';
import type { CodecManifest } from '../../../../engine/packs/manifest.ts';
import { checkModule } from '../../../../engine/packs/module.ts';
import { vectorOf } from '../../../../engine/packs/vectors.ts';
import { refusal } from '../../../refusal.ts';
import { assemble, I32, I64, i32, type Locals, type Parts } from './assemble.ts';

const LIMITS = { fuelPerToken: 1000 };
const get = (local: number): number[] => [0x20, local];

/** Copies so many floats: from, to, and how many as instructions that push an i32. */
const copied = (from: number, to: number, bytes: readonly number[]): number[] => [
  ...[...get(to), ...get(from), ...bytes, 0xfc, 0x0a, 0, 0],
];
const product = (...locals: readonly number[]): number[] => [
  ...get(locals[0]!),
  ...locals.slice(1).flatMap((local) => [...get(local), 0x6c]),
];
const bytesOf = (...locals: readonly number[]): number[] => [...product(...locals), ...i32(4), 0x6c];

/** Runs a body while the counter in `local` is below `count`. */
const repeated = (local: number, count: readonly number[], body: readonly number[]): number[] => [
  ...[...i32(0), 0x21, local, 0x02, 0x40, 0x03, 0x40, ...get(local), ...count, 0x4e, 0x0d, 1],
  ...[...body, ...get(local), ...i32(1), 0x6a, 0x21, local, 0x0c, 0, 0x0b, 0x0b],
];
/** The address of a float: array[index]. */
const at = (array: number, index: readonly number[]): number[] => [...get(array), ...index, ...i32(4), 0x6c, 0x6a];
const sum = (a: readonly number[], b: readonly number[]): number[] => [...a, ...b, 0x6a];
const float = [0x2a, 2, 0] as const;
const stored = [0x38, 2, 0] as const;

/** Sums over pairs of an outer and an inner index: out[h·n + i] += factors[h·m + j] · page[…]. */
const summed = (outer: number, inner: number, element: readonly number[], isTokenInner: boolean): number[] => {
  const [h, i, j] = [6, 7, 8];
  const out = at(2, sum([...product(h, outer)], get(i)));
  const factor = at(1, sum([...product(h, inner)], get(j)));
  const term = [...factor, ...float, ...at(0, element), ...float, 0x94];
  const add = [...out, ...out, ...float, ...term, 0x92, ...stored];
  const clear = isTokenInner ? [] : [...out, 0x43, 0, 0, 0, 0, ...stored];
  return repeated(h, get(5), repeated(i, get(outer), [...clear, ...repeated(j, get(inner), add)]));
};

const COUNTERS: Locals = [[3, I32]];
/** A codec whose pages are the rows themselves: float32, nothing lost. */
const PLAIN: Parts = {
  memory: { min: 1, max: 32 },
  variables: 2,
  bodies: {
    pack_page_bytes: bytesOf(0, 1),
    pack_encode: [...copied(0, 1, bytesOf(2, 3)), ...i32(0)],
    pack_decode: [...copied(0, 1, bytesOf(2, 3)), ...i32(0)],
    pack_dots: [...summed(3, 4, sum(product(7, 4), get(8)), false), ...i32(0)],
    pack_mix: [...summed(4, 3, sum(product(8, 4), get(7)), true), ...i32(0)],
  },
  locals: { pack_dots: COUNTERS, pack_mix: COUNTERS },
};
const plain = (bodies: Readonly<Record<string, readonly number[]>>, rest: Parts = {}): Uint8Array =>
  assemble({ ...PLAIN, ...rest, bodies: { ...PLAIN.bodies, ...bodies } });

const manifestOf = (bytes: Uint8Array, format: Partial<CodecManifest['formats'][number]> = {}): CodecManifest => ({
  ...{ kind: 'codec', name: 'plain', version: '1.0.0', abi: 1, engine: { from: '0.1.0', below: '1.0.0' } },
  ...{ features: [], supersedes: [] },
  source: { sha256: '0'.repeat(64), builder: 'a test', packages: [], command: 'none' },
  formats: [
    {
      ...{ name: 'plain', side: 'both', bits: 32, known: null, errorMost: 0, fuelPerToken: 20_000 },
      bytes: { elementBits: 32, tokenBytes: 0, channelBytes: 0, headBytes: 0 },
      ...format,
    },
  ],
  vectors: [vectorOf(bytes, { seed: 5, tokens: 6, dim: 8, queries: 2 })],
});

/** What the contract of a module finds, whose vectors are those of another one. */
function problemsOf(bytes: Uint8Array, format: Partial<CodecManifest['formats'][number]> = {}): string[] {
  const manifest = manifestOf(instrumentModule(assemble(PLAIN)), format);
  return tryContract(instrumentModule(bytes), manifest, [1, 2]).problems.map(({ check }) => check);
}

const faultOf = (work: () => unknown): unknown => {
  const error = refusal(work);
  expect(error.code).toBe('bad-pack');
  return error.values['fault'];
};

describe('what may not be in a module', () => {
  it('a sound one has nothing of it', () => {
    expect(checkModule(assemble()).kind).toBe('codec');
    expect(checkModule(assemble({ kind: 'elementwise' })).kind).toBe('elementwise');
    expect(checkModule(assemble(PLAIN))).toMatchObject({ heapBase: 1024, memoryPagesMax: 32 });
  });

  const body = (...instructions: readonly number[]): Uint8Array =>
    assemble({ bodies: { pack_encode: [...instructions, ...i32(0)] } });
  const section = (id: number, ...bytes: readonly number[]): Uint8Array => assemble({ sections: { [id]: bytes } });
  const cases: Readonly<Record<string, readonly [Uint8Array, RegExp]>> = {
    'an import': [section(2, 1, 1, 0x61, 1, 0x62, 0, 0), /may not have: import/],
    'an empty list of imports': [section(2, 0), /may not have: import/],
    'a start function': [section(8, 0), /may not have: start/],
    'a section of tags': [section(13, 0), /may not have: tag/],
    'a custom section': [section(0, 1, 0x61, 7), /may not have: custom/],
    'a section that nobody knows': [Uint8Array.from([...assemble(), 14, 0]), /may not have: number 14/],
    'sections in another order': [Uint8Array.from([...assemble(), 1, 1, 0]), /comes too late: type/],
    'memory without a maximum': [section(5, 1, 0, 1), /has no maximum/],
    'memory of 17 MiB': [section(5, 1, 1, 1, ...unsigned(272)), /272, where 256/],
    'shared memory': [section(5, 1, 3, 1, 1), /shared/],
    'memory of 64 bits': [section(5, 1, 5, 1, 1), /64 bits/],
    'two memories': [section(5, 2, 1, 1, 1, 1, 1, 1), /2 memories/],
    'no memory': [assemble({ sections: { 5: null } }), /memory is none/],
    'two tables': [section(4, 2, 0x70, 1, 0, 0, 0x70, 1, 0, 0), /2 tables/],
    'a table that may be large': [section(4, 1, 0x70, 1, 0, ...unsigned(2 ** 20)), /1024/],
    'a table of outer references': [section(4, 1, 0x6f, 1, 0, 0), /something else than functions/],
    'memory.grow': [body(...i32(1), 0x40, 0, 0x1a), /memory\.grow/],
    'table.grow': [body(0xfc, 0x0f, 0), /an instruction on tables/],
    'table.set': [body(0x26, 0), /an instruction on tables/],
    'an atomic instruction': [body(0xfe, 0x03, 0), /atomic/],
    'a relaxed SIMD instruction': [body(0xfd, 0x80, 0x02), /relaxed SIMD/],
    'a tail call': [body(0x12, 0), /tail call/],
    'an exception': [body(0x08, 0), /exception/],
    'a reference': [body(0xd2, 0), /reference/],
    'an unknown instruction': [body(0x27), /not known/],
    'a hole among the SIMD instructions': [body(0xfd, 0x9a, 0x01), /not known/],
    'an instruction of garbage collection': [body(0xfb, 0x00, 0x00), /not known/],
    'operands of other types': [body(0x43, 0, 0, 0, 0, 0x45, 0x1a), /operands/],
    'a local that is not there': [body(0x20, 90, 0x1a), /local 90/],
    'a function that is not there': [body(0x10, 99), /function 99/],
    'a label that is not there': [body(0x0c, 7), /label 7/],
    'a constant that is written': [body(...i32(1), 0x24, 0), /global 0 is not variable/],
    'a number of six bytes': [section(5, 1, 1, 0x80, 0x80, 0x80, 0x80, 0x80, 0x00, 1), /more than 32 bits/],
    'a number of 33 bits': [section(5, 1, 1, 1, 0x80, 0x80, 0x80, 0x80, 0x10), /32 bits/],
    'an i32 of 33 bits': [body(0x41, 0x80, 0x80, 0x80, 0x80, 0x40, 0x1a), /32 bits/],
    'a billion functions': [section(3, ...unsigned(1e9)), /functions, where/],
    'a billion locals': [assemble({ locals: { pack_encode: [[1e9, I64]] } }), /1000 locals/],
    'blocks in blocks without end': [
      body(...Array.from({ length: 2000 }, () => [0x02, 0x40]).flat()),
      /blocks in blocks/,
    ],
    'a section that is longer than the file': [Uint8Array.from([...assemble(), 11, 0xff, 0x7f]), /are said to follow/],
    'a body that ends too late': [body(0x0b), /bytes follow|a function ends/],
    'an export besides': [assemble({ exported: [['peek', 0, 0]] }), /nobody asked for/],
    'an export twice': [assemble({ exported: [['memory', 2, 0]] }), /twice/],
    'no exports': [section(7, 0), /does not export/],
    'data beyond __heap_base': [section(11, 1, 0, ...i32(1020), 0x0b, 8, 0, 0, 0, 0, 0, 0, 0, 0), /data lie beyond/],
    '__heap_base beyond the memory': [assemble({ heapBase: 2 ** 30 }), /lies beyond the memory/],
    '__heap_base that varies': [section(6, 1, I32, 1, ...i32(1024), 0x0b), /no constant/],
    'a count of data that is wrong': [section(12, 3), /count of data/],
    'a global of a global': [section(6, 2, I32, 0, ...i32(9), 0x0b, I32, 0, 0x23, 0, 0x0b), /no constant/],
    'no code': [assemble({ sections: { 10: null } }), /no code/],
    'less code than functions': [section(10, 0), /0 bodies/],
    'another version': [Uint8Array.from([...assemble()].with(4, 2)), /version 1/],
    'no WebAssembly': [Buffer.from('#!/bin/sh\nexit 0\n'), /version 1/],
    nothing: [new Uint8Array(0), /ends too early/],
    'more than 1 MiB': [new Uint8Array(2 ** 20 + 1), /are the most/],
  };
  it.each(Object.keys(cases))('%s', (name) => {
    const [bytes, message] = cases[name]!;
    const error = refusal(() => instrumentModule(bytes));
    expect(error.code).toBe('bad-pack');
    expect(error.values['fault']).toBe('module');
    expect(error.message).toMatch(message);
  });

  it('any prefix, and any byte that is another one, is refused or a module that is checked like any', () => {
    const sound = assemble(PLAIN);
    for (let length = 0; length < sound.length; length++)
      expect(refusal(() => checkModule(sound.subarray(0, length))).code).toBe('bad-pack');
    let kept = 0;
    for (let i = 0; i < sound.length; i++)
      for (const byte of [0x00, 0x7f, 0xff, sound[i]! ^ 1]) {
        const changed = sound.slice();
        changed[i] = byte;
        try {
          instrumentModule(changed);
          kept++;
        } catch (error) {
          expect((error as { code: string }).code).toBe('bad-pack');
        }
      }
    expect(kept).toBeGreaterThan(0);
  });
});

describe('what a module may not do', () => {
  const x = new Float32Array(16).fill(0.5);
  const open = (bodies: Readonly<Record<string, readonly number[]>>, rest: Parts = {}): PackInstance =>
    PackInstance.open(instrumentModule(plain(bodies, rest)), LIMITS);
  const encoding = (...instructions: readonly number[]): (() => void) => {
    const codec = open({ pack_encode: [...instructions, ...i32(0)] });
    return () => void codec.encode(x, 2, 8);
  };
  const forever = [0x03, 0x40, 0x0c, 0, 0x0b];

  it('run without end, in a loop, in calls of itself, through a table or before it is asked', () => {
    expect(faultOf(encoding(...forever, 0x00))).toBe('fuel');
    // A function that calls itself twice, so that its calls do not end before fuel does.
    const twice = [...get(0), 0x45, 0x04, 0x40, 0x0f, 0x0b, ...get(0), ...i32(1), 0x6b, 0x10, 6];
    const helper = { parameters: [I32], results: [], body: [...twice, ...twice.slice(7)] };
    const codec = open({ pack_encode: [...i32(60), 0x10, 6, ...i32(0)] }, { helpers: [helper] });
    expect(faultOf(() => codec.encode(x, 2, 8))).toBe('fuel');
    const table = { 4: [1, 0x70, 1, 1, 1], 9: [1, 0, ...i32(0), 0x0b, 1, 6] };
    const indirect = { parameters: [], results: [], body: [...i32(0), 0x11, 6, 0] };
    const through = open({ pack_encode: [0x10, 6, ...i32(0)] }, { helpers: [indirect], sections: table });
    expect(['fuel', 'trap']).toContain(faultOf(() => through.encode(x, 2, 8)));
    expect(faultOf(() => open({ pack_abi: [...forever, 0x00] }))).toBe('fuel');
    expect(faultOf(() => open({ pack_page_bytes: [...forever, 0x00] }).pageBytes(2, 8))).toBe('fuel');
  });

  it('fill its memory as often as it likes', () => {
    const fill = [...i32(0), ...i32(7), ...i32(2 ** 24), 0xfc, 0x0b, 0];
    const large = { memory: { min: 256, max: 256 }, heapBase: 1024 };
    const codec = open({ pack_encode: [0x03, 0x40, ...fill, 0x0c, 0, 0x0b, 0x00] }, large);
    expect(faultOf(() => codec.encode(x, 2, 8))).toBe('fuel');
    // Once is more than a call of this size has, too: 16 bytes are a unit.
    expect(faultOf(() => open({ pack_encode: [...fill, ...i32(0)] }, large).encode(x, 2, 8))).toBe('fuel');
  });

  it('leave its memory, divide by nothing, or end itself', () => {
    expect(faultOf(encoding(...i32(-8), ...i32(1), 0x36, 2, 0))).toBe('trap');
    expect(faultOf(encoding(...i32(1), ...i32(0), 0x6d, 0x1a))).toBe('trap');
    expect(faultOf(encoding(0x00))).toBe('trap');
  });

  it('write beside its output, by a byte before or behind', () => {
    for (const offset of [-1, -64, 64, 64 + 63]) {
      const write = [...get(1), ...i32(offset), 0x6a, ...i32(0), 0x3a, 0, 0];
      expect(faultOf(encoding(...write)), `${offset}`).toBe('guard band');
    }
  });

  it('answer what is no number, say that it failed, or have pages that do not fit', () => {
    const nan = [...get(1), ...i32(-1), 0x36, 2, 0];
    const codec = open({ pack_decode: [...nan, ...i32(0)] });
    expect(faultOf(() => codec.decode(new Uint8Array(64), 2, 8))).toBe('not finite');
    expect(faultOf(() => open({ pack_encode: i32(3) }).encode(x, 2, 8))).toBe('status');
    expect(faultOf(() => open({ pack_page_bytes: i32(0) }).encode(x, 2, 8))).toBe('status');
    expect(faultOf(() => open({ pack_page_bytes: i32(-1) }).encode(x, 2, 8))).toBe('memory');
    expect(faultOf(() => open({ pack_page_bytes: i32(2_097_100) }).encode(x, 2, 8))).toBe('memory');
    expect(faultOf(() => open({ pack_abi: i32(2) }))).toBe('abi');
  });

  it('be asked again after that', () => {
    const codec = open({ pack_encode: [0x00] });
    expect(faultOf(() => codec.encode(x, 2, 8))).toBe('trap');
    expect(codec.isOver).toBe(true);
    expect(refusal(() => codec.encode(x, 2, 8)).code).toBe('closed');
    expect(refusal(() => codec.decode(new Uint8Array(64), 2, 8)).code).toBe('closed');
  });

  it('be asked for shapes and arrays that do not fit', () => {
    const codec = open({});
    for (const [tokens, dim] of [
      [0, 8],
      [130, 8],
      [1, 0],
      [1, 513],
      [1.5, 8],
      [Number.NaN, 8],
    ] as const)
      expect(refusal(() => codec.encode(x, tokens, dim)).code).toBe('bad-shape');
    expect(refusal(() => codec.encode(x, 2, 16)).code).toBe('bad-shape');
    expect(refusal(() => codec.decode(new Uint8Array(63), 2, 8)).code).toBe('bad-shape');
    expect(refusal(() => codec.dots(new Uint8Array(64), x, x, 2, 8, 65)).code).toBe('bad-shape');
    expect(codec.decode(codec.encode(x, 2, 8), 2, 8)).toEqual(x);
  });

  it('carry keys of one session into a page of another: memory is of one instance', () => {
    // It adds what it saw first, ever, to every page, as a thief would who has pages of his own.
    const first = [...get(0), 0x28, 2, 0, 0x24, 1];
    const thief = {
      pack_encode: [0x23, 1, 0x45, 0x04, 0x40, ...first, 0x0b, ...get(1), 0x23, 1, 0x36, 2, 0, ...i32(0)],
    };
    const [alice, eve] = [open(thief), open(thief)];
    const secret = new Float32Array(16).fill(Math.PI);
    alice.encode(secret, 2, 8);
    const [hers, ours] = [alice.encode(x, 2, 8), eve.encode(x, 2, 8)];
    expect(new Float32Array(hers.buffer, 0, 1)[0]).toBe(Math.fround(Math.PI));
    expect(new Float32Array(ours.buffer, 0, 1)[0]).toBe(0.5);
    expect(problemsOf(plain(thief))).toContain('repeat');
  });
});

describe('what the contract finds', () => {
  const store = (offset: number, value: number): number[] => [...get(1), ...i32(value), 0x36, 2, ...unsigned(offset)];
  const whole = PLAIN.bodies!;

  it('nothing in a sound module', () => {
    expect(problemsOf(assemble(PLAIN))).toEqual([]);
  });

  it('what is lost beyond the promise', () => {
    const zeroed = { pack_decode: [...whole['pack_decode']!.slice(0, -2), ...store(0, 0), ...i32(0)] };
    expect(problemsOf(plain(zeroed))).toContain('error');
    expect(problemsOf(plain(zeroed), { errorMost: 1 })).not.toContain('error');
  });

  it('products that are not those of the rows', () => {
    const wrong = [...get(2), ...i32(0x3f800000), 0x36, 2, 0, ...i32(0)];
    expect(problemsOf(plain({ pack_dots: wrong }))).toContain('products');
    // A mix that forgets what was there.
    expect(problemsOf(plain({ pack_mix: wrong }))).toContain('products');
  });

  it('pages of other bytes than promised', () => {
    expect(problemsOf(plain({ pack_page_bytes: [...bytesOf(0, 1), ...i32(4), 0x6a] }))).toContain('page bytes');
  });

  it('more fuel than promised', () => {
    expect(problemsOf(assemble(PLAIN), { fuelPerToken: 100 })).toContain('fuel');
  });

  it('an error that comes with the hundredth call, from what is remembered', () => {
    const count = [0x23, 1, ...i32(1), 0x6a, 0x24, 1, 0x23, 1, ...i32(100), 0x4a, 0x04, 0x40, ...store(0, 0), 0x0b];
    const found = problemsOf(plain({ pack_decode: [...whole['pack_decode']!.slice(0, -2), ...count, ...i32(0)] }));
    expect(found).toContain('repeat');
    expect(found).toContain('error');
  });

  it('what is left in memory by another call', () => {
    // It writes only the first half of what it decodes.
    const half = { pack_decode: [...copied(0, 1, [...bytesOf(2, 3), ...i32(1), 0x76]), ...i32(0)] };
    expect(problemsOf(plain(half))).toContain('not finite');
  });

  it('bytes that are not those of a vector, or another way to them', () => {
    // It does the same work once more.
    const again = [...whole['pack_encode']!.slice(0, -2), ...whole['pack_encode']!];
    expect(problemsOf(plain({ pack_encode: again }))).toEqual(['vector']);
  });

  it('a known format whose bits are not ours', () => {
    expect(problemsOf(assemble(PLAIN), { known: 'q8' })).toEqual(['twin']);
  });

  it('what ends in a trap, in every case, without an end of its own', () => {
    expect(problemsOf(plain({ pack_mix: [0x00] }))).toEqual(expect.arrayContaining(['trap']));
  });
});
