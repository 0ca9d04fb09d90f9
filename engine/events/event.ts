/** Events as they are told: their types, which follow from the table, and how one is made and put into words. */
import { assert } from '../../native/index.ts';
import type { EventField } from './field.ts';
import { EVENTS, type EventName, type EventRow } from './table.ts';

/** The fields of an event, by its name. */
export type EventFields<Name extends EventName> = {
  readonly [Key in keyof (typeof EVENTS)[Name]['fields']]: (typeof EVENTS)[Name]['fields'][Key] extends EventField<
    infer T
  >
    ? T
    : never;
};

/** One thing that happened to an engine. `docs/operate.md` lists them. */
export type EngineEvent = {
  readonly [Name in EventName]: {
    readonly event: Name;
    /** When it happened, milliseconds since the epoch. */
    readonly timeMs: number;
  } & EventFields<Name>;
}[EventName];

/** Tells that something happened. Never throws for whoever listens. */
export type TellEvent = <Name extends EventName>(event: Name, fields: EventFields<Name>) => void;

/** Nobody listens. */
export const untold: TellEvent = () => {};

/** Makes events, each with its time, and gives them to `send` in the order in which they happen. */
export const eventTeller =
  (send: (event: EngineEvent) => void): TellEvent =>
  (event, fields) => {
    const row: EventRow = EVENTS[event];
    const given: Readonly<Record<string, unknown>> = fields;
    const isAll = Object.keys(given).length === Object.keys(row.fields).length;
    const wrong = Object.entries(row.fields).find(([name, { holds }]) => !holds(given[name]));
    assert(
      isAll && wrong === undefined,
      `event ${event} is told with a ${wrong?.[0] ?? 'field'} that it does not have`,
    );
    send({ event, timeMs: Date.now(), ...fields } as unknown as EngineEvent);
  };

/** The sentence of an event. */
export function eventText(event: EngineEvent): string {
  const row: EventRow = EVENTS[event.event];
  const values = event as unknown as Readonly<Record<string, never>>;
  return row.says.replaceAll(/\{(\w+)\}/g, (_, name: string) => row.fields[name]!.text(values[name]!));
}
