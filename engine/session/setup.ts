/** What a session is opened with in the thread that runs it: what its caller asks for, and what its engine gives it. */
import type { Fingerprint, Lookup, TextHint } from '../../memory/index.ts';
import type { PagePool } from '../../native/index.ts';
import type { AdapterProposal, Policy, ThresholdSet } from '../../policy/index.ts';
import type { WitnessLog } from '../../witness/index.ts';
import type { AdapterSet } from '../adapters/adapters.ts';
import type { KnownLengths } from '../cache/foreseen.ts';
import type { Group } from '../cache/group.ts';
import type { SessionPack } from '../cache/pack-pages.ts';
import type { LayerRows } from '../cache/types.ts';
import type { Meter } from '../metrics/meter.ts';
import type { PolicyModule, PolicyOrigin } from '../options/policy-module.ts';
import type { SessionOptions } from '../options/types.ts';
import type { OriginalFiles } from '../originals/types.ts';
import type { Beginnings } from './known-prefix.ts';
import type { Sharing } from './sharing.ts';

export interface SessionSetup extends Omit<SessionOptions, 'policy'> {
  /** What was proposed of them; left out: nobody asked. */
  readonly proposal?: AdapterProposal;
  /**
   * The policy that SessionOptions names, or a policy of one's own: in the thread that runs it, since what decides
   * cannot be sent to another.
   */
  readonly policy?: string | Policy | PolicyModule;
  /** The module that a policy of one's own came from. */
  readonly policyOrigin?: PolicyOrigin;
  readonly log: WitnessLog | null;
  readonly thresholds: ThresholdSet;
  /** Where the thresholds came from, for the log. */
  readonly lookup?: Lookup | null;
  readonly fingerprint?: Fingerprint;
  /** How long earlier sessions of the model became, where nobody says how long this one gets. */
  readonly lengths?: KnownLengths;
  /** What its `adapters` stand for in its engine; left out: it has none. */
  readonly adapterSet?: AdapterSet;
  /** What its `pack` stands for in its engine; left out: it has none. */
  readonly sessionPack?: SessionPack;
  /** A pool whose threads and memory other sessions share; left out: one of its own. Its owner closes it. */
  readonly pool?: PagePool;
  /** That pool as the memory which it shares with other sessions; left out: it has it to itself. */
  readonly shared?: Sharing;
  /** What bounds it and others of that pool together (`kvGroup`); left out: nothing does. */
  readonly group?: Group;
  /** The budget of all of them, where their engine has one. */
  readonly sharedBudgetBytes?: number;
  /** Asks what earlier sessions like this one say, now that more is known of it. */
  readonly recall?: (fingerprint: Fingerprint, hint?: TextHint) => Promise<Lookup>;
  /** What helpers say of a text; null: nothing. Left out: nobody asks any. */
  readonly hintOf?: (text: Uint8Array) => Promise<TextHint | null>;
  /** For texts that begin as others did; left out: nothing is known or learned of beginnings. */
  readonly beginnings?: Beginnings;
  /** Goes into the first entry of the log, beside what is effective: what it goes on from. */
  readonly origin?: Readonly<Record<string, unknown>>;
  /** Counts what the session does, among others; left out: one of its own. */
  readonly meter?: Meter;
  /** What originals are written and read by; left out: node:fs. */
  readonly originalFiles?: OriginalFiles;
  /** The state folder of its engine; left out: it has none. */
  readonly stateDir?: string;
  /** Sees the rows of each layer before the cache does. */
  readonly onRows?: (rows: LayerRows) => void;
  /** Sees the residual stream behind the last layer, [T, m], of every token; nobody begins with its pages then. */
  readonly onHidden?: (hidden: Float32Array) => void;
}
