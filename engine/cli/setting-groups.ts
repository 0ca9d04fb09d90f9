/** Settings that several commands take, and what the help says of a command. */
import { GENERATE_OPTIONS, LOADING_OPTIONS, SESSION_OPTIONS, STATE_OPTIONS } from '../options/table.ts';
import { CONVERSATION_OPTIONS } from '../thread/chat-options.ts';
import { SAMPLING_OPTIONS } from '../transformer/sampling/options.ts';
import { settingNames } from './option-settings.ts';
import type { Settings } from './options.ts';
import type { OwnDefaults, SettingName } from './settings.ts';

/** What loads a model. */
export const ENGINE: readonly SettingName[] = [...settingNames(LOADING_OPTIONS), 'config'];
/** The server that machines share. */
export const SHARED: readonly SettingName[] = settingNames({ qdrant: STATE_OPTIONS.qdrant });
/** The state folder and its log. */
export const STATE: readonly SettingName[] = ['state', 'masterKey', ...settingNames(STATE_OPTIONS)];
/** What an engine tells beside its work. */
export const TOLD: readonly SettingName[] = ['logLevel', 'progress', 'json'];
/** What bounds and governs a cache. */
export const CACHE: readonly SettingName[] = [...settingNames(SESSION_OPTIONS), 'trustedKey'];
/** A prompt and how it is answered. */
export const ANSWER: readonly SettingName[] = [
  'prompt',
  'chat',
  ...settingNames(CONVERSATION_OPTIONS),
  ...settingNames(GENERATE_OPTIONS),
  'compare',
];
/** How tokens are drawn. */
export const SAMPLING: readonly SettingName[] = settingNames(SAMPLING_OPTIONS).filter((name) => name !== 'seed');
/** What was learned of a model. */
export const LEARNED: readonly SettingName[] = ['model', 'cache', 'state', 'masterKey', 'config', 'json'];
/** The log that is asked. */
export const AUDIT: readonly SettingName[] = ['state', 'masterKey', 'config', 'json'];
/** What a list of rows takes beside. */
export const LISTING: readonly SettingName[] = ['limit', 'format', 'exitStatus', ...AUDIT];
/** A stretch of the log. */
export const SPAN: readonly SettingName[] = ['since', 'until', 'ofModel', 'database', 'checkRows'];
/** Which decisions are meant. */
export const DECISIONS: readonly SettingName[] = [
  ...['session', 'layer', 'page', 'side', 'from', 'to', 'reason', 'threshold', 'refused', 'step'],
  ...['epsilonFrom', 'epsilonTo', 'epsilonNow', 'bytes'],
  ...SPAN,
] as const satisfies readonly SettingName[];

/** A command, as it is made and as its help shows it. */
export interface CommandText {
  /** The name and arguments, in the notation of commander. */
  readonly usage: string;
  readonly does: string;
  /** The same in a few words, for lists of commands. Default: `does`. */
  readonly brief?: string;
  /** Under which heading the list has it. Default: that of the command before. */
  readonly topic?: string;
  readonly examples: readonly string[];
  readonly settings: readonly SettingName[];
  /** Defaults that differ from those of the settings. */
  readonly defaults?: OwnDefaults;
  /** Settings that may be given several times. */
  readonly repeats?: readonly SettingName[];
  readonly act: (settings: Settings, args: string[]) => Promise<void>;
}
