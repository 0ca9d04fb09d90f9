/** A template as a tree. */
import type { Text } from './text.ts';
import type { Value } from './values.ts';

export interface Arguments {
  /** spread: after a star. */
  readonly positional: readonly { readonly value: Expression; readonly spread: boolean }[];
  /** name: null after two stars. */
  readonly named: readonly { readonly name: string | null; readonly value: Expression }[];
}

export type Comparison = '==' | '!=' | '<' | '<=' | '>' | '>=' | 'in' | 'not in';
export type Operator = '+' | '-' | '*' | '/' | '//' | '%' | '**';

export type Expression =
  | { readonly kind: 'constant'; readonly value: Value }
  | { readonly kind: 'name'; readonly name: string }
  | { readonly kind: 'list' | 'tuple'; readonly items: readonly Expression[] }
  | { readonly kind: 'dict'; readonly entries: readonly (readonly [Expression, Expression])[] }
  | { readonly kind: 'operation'; readonly sign: Operator; readonly left: Expression; readonly right: Expression }
  | { readonly kind: 'joined'; readonly parts: readonly Expression[] }
  | { readonly kind: 'unary'; readonly sign: '-' | '+' | 'not'; readonly of: Expression }
  | { readonly kind: 'either'; readonly sign: 'and' | 'or'; readonly left: Expression; readonly right: Expression }
  | {
      readonly kind: 'comparison';
      readonly first: Expression;
      readonly rest: readonly { readonly sign: Comparison; readonly value: Expression }[];
    }
  | { readonly kind: 'choice'; readonly test: Expression; readonly yes: Expression; readonly no: Expression | null }
  | { readonly kind: 'attribute'; readonly of: Expression; readonly name: string }
  | { readonly kind: 'item'; readonly of: Expression; readonly at: Expression }
  | { readonly kind: 'slice'; readonly of: Expression; readonly bounds: readonly (Expression | null)[] }
  | { readonly kind: 'call'; readonly of: Expression; readonly args: Arguments }
  /** of: null for the text of a block. */
  | { readonly kind: 'filter'; readonly of: Expression | null; readonly name: string; readonly args: Arguments }
  | {
      readonly kind: 'test';
      readonly of: Expression;
      readonly name: string;
      readonly args: Arguments;
      readonly negated: boolean;
    };

/** What is assigned to: a name, several, or an attribute of a namespace. */
export type Target =
  | { readonly kind: 'name'; readonly name: string }
  | { readonly kind: 'names'; readonly targets: readonly Target[] }
  | { readonly kind: 'field'; readonly of: string; readonly name: string };

export interface Macro {
  readonly name: string;
  readonly parameters: readonly { readonly name: string; readonly otherwise: Expression | null }[];
  readonly body: readonly Statement[];
  /** Which of `varargs`, `kwargs` and `caller` the body reads. */
  readonly reads: ReadonlySet<string>;
}

export type Statement =
  | { readonly kind: 'text'; readonly text: Text }
  | { readonly kind: 'output'; readonly value: Expression }
  | {
      readonly kind: 'for';
      readonly target: Target;
      readonly among: Expression;
      readonly test: Expression | null;
      readonly recursive: boolean;
      readonly body: readonly Statement[];
      readonly otherwise: readonly Statement[];
    }
  | {
      readonly kind: 'if';
      readonly branches: readonly { readonly test: Expression; readonly body: readonly Statement[] }[];
      readonly otherwise: readonly Statement[];
    }
  | { readonly kind: 'set'; readonly target: Target; readonly value: Expression }
  | {
      readonly kind: 'setBlock';
      readonly target: Target;
      readonly filter: Expression | null;
      readonly body: readonly Statement[];
    }
  | { readonly kind: 'macro'; readonly macro: Macro }
  | { readonly kind: 'callBlock'; readonly call: Expression; readonly caller: Macro }
  | { readonly kind: 'filterBlock'; readonly filter: Expression; readonly body: readonly Statement[] }
  | {
      readonly kind: 'with';
      readonly values: readonly { readonly target: Target; readonly value: Expression }[];
      readonly body: readonly Statement[];
    }
  | { readonly kind: 'break' | 'continue' };
