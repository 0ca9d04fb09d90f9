/** What stands behind `is`. */

import { operate } from './arithmetic.ts';
import { compared, equal } from './compare.ts';
import { TemplateFault } from './fault.ts';
import { Loop } from './globals.ts';
import type { Comparison } from './nodes.ts';
import { Text } from './text.ts';
import { type Call, Callable, Dict, iterable, numberOf, Range, Tuple, Undefined, type Value } from './values.ts';
import { textOf } from './written.ts';

export type Test = (value: Value, call: Call) => boolean;

const comparing =
  (sign: Comparison): Test =>
  (value, { args: [other], machine }) => {
    if (other === undefined) throw new TemplateFault('a test lacks what it compares with');
    return compared(sign, value, other, machine.bounds);
  };

/** True if a number leaves this rest when it is divided. */
const leaves = (value: Value, by: Value, rest: bigint, { machine: { bounds } }: Call): boolean =>
  equal(operate('%', value, by, bounds), rest, bounds);

const isEqual = comparing('==');
const isCallable = (value: Value): boolean =>
  value instanceof Callable || value instanceof Loop || value instanceof Undefined;
/** True if the text of a value has letters of one case alone. */
function hasCase(value: Value, call: Call, change: (text: string) => string, other: (text: string) => string): boolean {
  const text = textOf(value, call.machine.bounds).value;
  return change(text) === text && other(text) !== text;
}
const upper = (text: string): string => text.toUpperCase();
const lower = (text: string): string => text.toLowerCase();

export const TESTS: ReadonlyMap<string, Test> = new Map<string, Test>([
  ['!=', comparing('!=')],
  ['<', comparing('<')],
  ['<=', comparing('<=')],
  ['==', isEqual],
  ['>', comparing('>')],
  ['>=', comparing('>=')],
  ['boolean', (value) => typeof value === 'boolean'],
  ['callable', isCallable],
  ['defined', (value) => !(value instanceof Undefined)],
  ['divisibleby', (value, call) => leaves(value, call.args[0] ?? null, 0n, call)],
  ['eq', isEqual],
  ['equalto', isEqual],
  ['escaped', (value) => value instanceof Text && value.isMarkup],
  ['even', (value, call) => leaves(value, 2n, 0n, call)],
  ['false', (value) => value === false],
  ['float', (value) => typeof value === 'number'],
  ['ge', comparing('>=')],
  ['greaterthan', comparing('>')],
  ['gt', comparing('>')],
  ['in', comparing('in')],
  ['integer', (value) => typeof value === 'bigint'],
  ['iterable', (value) => iterable(value) !== undefined],
  ['le', comparing('<=')],
  ['lessthan', comparing('<')],
  ['lower', (value, call) => hasCase(value, call, lower, upper)],
  ['lt', comparing('<')],
  ['mapping', (value) => value instanceof Dict],
  ['ne', comparing('!=')],
  ['none', (value) => value === null],
  ['number', (value) => numberOf(value) !== undefined],
  ['odd', (value, call) => leaves(value, 2n, 1n, call)],
  ['sameas', (value, { args: [other = null] }) => value === other],
  [
    'sequence',
    (value) =>
      value instanceof Text ||
      value instanceof Tuple ||
      value instanceof Dict ||
      value instanceof Range ||
      Array.isArray(value) ||
      value instanceof Undefined,
  ],
  ['string', (value) => value instanceof Text],
  ['true', (value) => value === true],
  ['undefined', (value) => value instanceof Undefined],
  ['upper', (value, call) => hasCase(value, call, upper, lower)],
]);
