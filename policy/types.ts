/**
 * The nouns of a decision. Everything here is plain data that survives JSON unchanged: a decision must be repeatable
 * from the log alone, so a policy sees nothing that is not in a `Situation` or in the state it made from earlier ones.
 */
import type { FormatName, FormatPair, LatentName, Part, Side, WindowName } from '../native/index.ts';
import type { Course } from './course.ts';
import type { Estimate, Law } from './law.ts';

/** What a page may be in: a format of keys or of values, or a latent, from which both are computed again. */
export type PageForm = FormatName | LatentName;

/**
 * What a page may have become: of one that is freed nothing is left, because no query sees it any more or because it
 * was let go, and it comes back only with its tokens.
 */
export type LaterForm = PageForm | 'freed';

/** Where a threshold's value came from. */
export type ThresholdOrigin = 'default' | 'learned' | 'file' | 'option' | 'controller';

/** A number that decisions are compared with, and where it came from. */
export interface Threshold {
  /** e.g. 'price', 'pressure.enter', 'quality.degraded' */
  readonly id: string;
  /** The number. */
  readonly value: number;
  /** Its unit, in words. */
  readonly unit: string;
  /** Where the value came from. */
  readonly origin: ThresholdOrigin;
  /** Measurement or reason behind the value: where it was measured, or "chosen, not measured". */
  readonly source: string;
  /** Sample count behind a learned value, 0 for a default. */
  readonly samples: number;
  /** Standard deviation of the logarithm of a learned value, where it was estimated. */
  readonly sd?: number;
  /** Log entries (sequence numbers) that a learned value rests on. */
  readonly evidence: readonly number[];
}

/** A stretch of one series of a log that learned values rest on. */
export interface LogRange {
  /** Id of the log. */
  readonly logId: string;
  /** Its first entry (sequence number). */
  readonly from: number;
  /** Its last entry. */
  readonly to: number;
}

/** Where many numbers at once are from: the law of errors, or the course. */
export type ThresholdSource = Pick<Threshold, 'origin' | 'source' | 'samples' | 'evidence'>;

/** Everything a policy is allowed to know beforehand. */
export interface ThresholdSet {
  /** The version of this layout. */
  readonly version: 1;
  /** Thresholds by their id. */
  readonly thresholds: Readonly<Record<string, Threshold>>;
  /** Layer gains g of the error law KLD ≈ c·Σ g·ε², per side, [layers]; 1 without evidence. */
  readonly gains: { readonly k: readonly number[]; readonly v: readonly number[] };
  /** The constant c of that law. */
  readonly c: number;
  /**
   * What was learned of the way from errors to divergence; absent where nothing was, and in logs of earlier versions.
   */
  readonly law?: Law;
  /**
   * What earlier sessions of the model found of errors behind their first trials; absent where none of them told it.
   */
  readonly course?: Course;
  /** Where these two are from; absent where nothing was learned, and in logs of earlier versions. */
  readonly sources?: { readonly law?: ThresholdSource; readonly course?: ThresholdSource };
  /**
   * Where in which logs the evidence for all of this stands, so that it is not counted twice when files are merged;
   * absent when not known.
   */
  readonly ranges?: readonly LogRange[];
}

/** One measured candidate table of a page side, when the page became movable (exact content still at hand). */
export interface TrialReport {
  /** Layer, from 0. */
  readonly layer: number;
  /** Page of the layer, from 0. */
  readonly page: number;
  /** Keys, values, or both where a latent is concerned. */
  readonly side: Part;
  /** Format the page has now: the reference of the measurement. */
  readonly from: PageForm;
  /** ε per candidate format; a candidate that was not tried is absent. Never NaN. */
  readonly epsilon: Readonly<Partial<Record<PageForm, number>>>;
}

/** What became of a planned decision. */
export interface Outcome {
  /** Layer, from 0. */
  readonly layer: number;
  /** Page of the layer, from 0. */
  readonly page: number;
  /** Keys, values, or both where a latent is concerned. */
  readonly side: Part;
  /** Format before. */
  readonly from: PageForm;
  /** Format that was planned, or 'freed'. */
  readonly to: LaterForm;
  /** True if the move was made. */
  readonly accepted: boolean;
  /**
   * ε measured just before the commit against the page's bytes of that moment; null when the first trial was still
   * fresh.
   */
  readonly epsilonNow: number | null;
  /** Bytes that it gave back. */
  readonly bytesFreed: number;
}

/**
 * A page side that has another format without the policy's doing: restored from its latent or given back, moved by a
 * fork that shares the page, or freed.
 */
export interface FormChange {
  /** Layer, from 0. */
  readonly layer: number;
  /** Page of the layer, from 0. */
  readonly page: number;
  /** Keys, values, or both where a latent is concerned. */
  readonly side: Part;
  /** Format before. */
  readonly from: PageForm;
  /** Format after; 'freed' when nothing is left of the page. */
  readonly to: LaterForm;
}

/**
 * What lower formats of all pages were measured to do to the output of a few tokens, and the errors that belong to it.
 */
export interface ProbeReport {
  /** Tokens before those that were run again. */
  readonly tokens: number;
  /** Tokens that were run again. */
  readonly rows: number;
  /** Mean divergence between pages as they are and in lower formats, in nats. */
  readonly meanKld: number;
  /** Its standard error. */
  readonly standardError: number;
  /** Σ ε² of the same change by layer, with the queries of that moment. */
  readonly epsilon2: { readonly k: readonly number[]; readonly v: readonly number[] };
}

/**
 * What the output of a few tokens was, beside what it is when the same tokens are read once more over the originals of
 * all pages, or over pages of which every error was doubled.
 */
export interface RereadReport {
  /** Tokens before those that were read twice. */
  readonly tokens: number;
  /** Tokens that were read twice. */
  readonly rows: number;
  /** Mean divergence of what the session put out from what it would have over originals, in nats. */
  readonly meanKld: number;
  /** Its standard error. */
  readonly standardError: number;
  /** True if that is known from errors that were doubled, since not every page had an original. */
  readonly isDoubled?: boolean;
}

/** What was measured of the divergence of a session, beside what is predicted. */
export interface MeasuredKld {
  /** Tokens that were read twice. */
  readonly tokens: number;
  /** Mean divergence of these from the exact cache, in nats, with what reading twice does not see. */
  readonly meanKld: number;
  /** Measured over predicted divergence, as far as it is believed. */
  readonly level: Estimate;
  /** What is expected now: that times what is predicted of pages as old as they were when they were moved. */
  readonly expectedKld: number;
}

/** A page side whose original was kept when it was demoted, and what its form costs the queries of now. */
export interface CanaryReport {
  /** Layer, from 0. */
  readonly layer: number;
  /** Page of the layer, from 0. */
  readonly page: number;
  /** Keys or values. */
  readonly side: Side;
  /** Format of the original. */
  readonly from: FormatName;
  /** Format that the side has now. */
  readonly to: FormatName;
  /** ε of that format as it was predicted when the side was moved. */
  readonly epsilonPromised: number;
  /** ε of that format against the original, measured on the queries kept now. */
  readonly epsilonNow: number;
  /** Tokens since the original was kept. */
  readonly age: number;
  /**
   * How many rows of the side both errors are those of, where no more of it was kept: a row is that of one KV head and
   * one token. Left out: the whole side, and it can be put back.
   */
  readonly rows?: number;
}

/** One side of a page. */
export interface PageSide {
  /** Layer, from 0. */
  readonly layer: number;
  /** Page, from 0. */
  readonly page: number;
  /** Its keys, or its values. */
  readonly side: Side;
}

/** One side of a page, or the latent in place of both. */
export interface PagePart extends Omit<PageSide, 'side'> {
  /** Its keys, its values, or its latent. */
  readonly side: Part;
}

/** One side of a page, or its latent, whose codes are others than those that were made. */
export interface DamagedSide extends PagePart {
  /**
   * True: they were made again of an original, or keys and values took the place of the latent. Left out: they were
   * not.
   */
  readonly mended?: boolean;
}

/** Where the attention of the newest queries of one layer went. */
export interface MassReport {
  /** Layer, from 0. */
  readonly layer: number;
  /**
   * What each sealed page received since the last report of the layer, from page 0 on, as shares of what all of them
   * did. That of page 0 counts what the sinks received, which are kept apart from its codes.
   */
  readonly shares: readonly number[];
}

/**
 * The small serialisable view a policy sees at one scheduling point. Increments only: what is new since the last one.
 */
export interface Situation {
  /** Scheduling point, counts from 0 within a session. */
  readonly index: number;
  /**
   * Tokens in the cache. Fewer than in the situation before when tokens were taken back: pages without a page of newer
   * tokens behind them are forgotten, and reported anew when they have one again.
   */
  readonly tokens: number;
  /** KV bytes allocated now. */
  readonly bytes: number;
  /** Bytes that the next seal of all layers needs, or the next growth of their open pages where these are in 8 bits. */
  readonly sealBytes: number;
  /** null: no byte budget. */
  readonly budgetBytes: number | null;
  /** Mean KLD allowed, null: none. */
  readonly kldBudget: number | null;
  /** Prompt + max tokens, when known: the length that the session is expected to reach. */
  readonly tokensExpected: number | null;
  /** Most moves wanted at this point; the byte budget overrides it when `urgent`. */
  readonly movesMax: number;
  /** The next seal is due now: a deficit must be closed in this call or the session fails. */
  readonly urgent: boolean;
  /** Somebody asked for low memory (external signal). */
  readonly lowMemory: boolean;
  /** p95 of the last steps in milliseconds; 0 when unknown. */
  readonly stepLatencyMsP95: number;
  /** Milliseconds wished for; null: none. */
  readonly stepLatencyBudgetMs: number | null;
  /** Pages that were tried since the last situation. */
  readonly trials: readonly TrialReport[];
  /** What became of the moves planned before. */
  readonly outcomes: readonly Outcome[];
  /** What others have changed, behind the outcomes and before the trials; absent when nothing was. */
  readonly changes?: readonly FormChange[];
  /**
   * Pages that were tried again while they still have the format they were sealed in, behind the trials; absent when
   * none was.
   */
  readonly again?: readonly TrialReport[];
  /** What a gain probe found; absent when none was made. */
  readonly probe?: ProbeReport;
  /** What reading tokens twice has found; absent where none was. */
  readonly reread?: RereadReport;
  /**
   * What earlier sessions like this one say of its text factor, now that more of it is known; absent when nobody was
   * asked.
   */
  readonly text?: Estimate;
  /** What earlier sessions with the same beginning say of its pages; absent when nobody was asked, or knew any. */
  readonly later?: readonly LaterReport[];
  /**
   * How many other sessions hold pages together with this one, which a move changes for all; absent when it is as it
   * was told before, or nobody ever did.
   */
  readonly sharers?: readonly SharedPages[];
  /** Bytes of kept originals, which `bytes` and `budgetBytes` leave out; absent when none is kept. */
  readonly canaryBytes?: number;
  /**
   * Canaries that were measured since the last situation; absent when none was. Each can be put back at this point: a
   * move from `to` to `from`.
   */
  readonly canaries?: readonly CanaryReport[];
  /** Page sides whose codes are others than they were, though no move made them; left out where there are none. */
  readonly damaged?: readonly DamagedSide[];
  /**
   * Where attention went, of layers in turn, for policies that ask for it (`readsMasses`); there when pages have left
   * the window.
   */
  readonly masses?: readonly MassReport[];
}

/** So many other sessions hold the first so many pages as well. */
export interface SharedPages {
  /** The first so many. */
  readonly pages: number;
  /** Sessions that hold as many, beside this one. */
  readonly sessions: number;
}

/** What errors in a page of a known beginning cost the tokens that were read after it. */
export interface LaterReport {
  /** Number of the page, from 0. */
  readonly page: number;
  /** Answers that it rests on. */
  readonly answers: number;
  /**
   * ε² of coding the page's keys once more without a trellis, mean over these answers, [layers]; 0: not known.
   */
  readonly k: readonly number[];
  /** The same of its values. */
  readonly v: readonly number[];
}

/** Why, in data: `measured` was compared with `bound` of threshold `threshold`. */
export interface Because {
  /** Id of the threshold. */
  readonly threshold: string;
  /** What was measured. */
  readonly measured: number;
  /** What it was compared with. */
  readonly bound: number;
  /** Unit of both. */
  readonly unit: string;
  /** Where the threshold came from. */
  readonly origin: ThresholdOrigin;
  /** 'price' | 'deficit' | 'fixed' | 'age' | 'uniform' …: which rule of the policy fired */
  readonly rule: string;
}

/** One planned move of one page side. */
export interface Decision {
  /** Layer, from 0. */
  readonly layer: number;
  /** Page of the layer, from 0. */
  readonly page: number;
  /** Keys, values, or both where a latent is concerned or the page is let go. */
  readonly side: Part;
  /** Format that the side has. */
  readonly from: PageForm;
  /**
   * Format that it is to get; 'freed' for a whole page (`side` is 'kv', `from` the format of its keys) that is let go
   * though queries would see it, by policies that say so (`evicts`): attention skips it from then on.
   */
  readonly to: LaterForm;
  /**
   * ε of the source and target format against the exact page, by trials of the page (0 for q8 and f16 unless tried);
   * null when the policy does not use trials.
   */
  readonly epsilonFrom: number | null;
  /** The error of the target format. */
  readonly epsilonTo: number | null;
  /** Predicted divergence bought per byte saved, c·g·(ε_to² − ε_from²)/bytes; null without trials. */
  readonly price: number | null;
  /** Bytes that the move gives back. */
  readonly bytesFreed: number;
  /** The engine must measure the move again before committing it (its first trial is older than one page). */
  readonly retry: boolean;
  /** Why. */
  readonly because: Because;
}

/** What becomes of a planned move. */
export interface Verdict {
  /** True if the move is made. */
  readonly accepted: boolean;
  /** Why. */
  readonly because: Because;
}

/** What a policy must know of the latents of a session. */
export interface LatentContext {
  /** Format of the latent that is kept beside a page as long as both of its sides are in the window format. */
  readonly kept: LatentName;
  /**
   * Operations that computing keys and values of one page of one layer takes, in multiples of what the dense half takes
   * for a token.
   */
  readonly operations: number;
}

/** The codec of a kernel pack in which pages of a session may be held. */
export interface PackContext {
  /** Its name and the beginning of its digest: `pack:<name>@<digest>`. */
  readonly id: string;
  /** Bytes of a page of one layer in it, both sides. */
  readonly pageBytes: number;
}

/** What a session is, as far as a policy may know: it does not change while the session lasts. */
export interface PolicyContext {
  /** Layers of the cache. */
  readonly layers: number;
  /** Key and value heads of a layer. */
  readonly kvHeads: number;
  /** Channels of a head. */
  readonly headDim: number;
  /** Format that a page gets when it is sealed. */
  readonly windowFormat: WindowName;
  /** Format of the page that tokens are appended to; absent: f16, as in logs of earlier versions. */
  readonly openFormat?: WindowName;
  /** Newer tokens that must follow a sealed page before it may move; absent: a page of them, likewise. */
  readonly windowTokens?: number;
  /**
   * How far the queries of each layer look back, in tokens, their own included; null: over all. Pages that a layer has
   * left behind are freed. Absent where all layers see everything, and in logs of earlier versions, which freed none.
   */
  readonly slidingWindow?: readonly (number | null)[];
  /**
   * Bytes of one page side per format, all heads; of a latent, which is both sides in one, of the page. Yardsticks that
   * are not named and latents that no page may become are absent.
   */
  readonly pageBytes: Readonly<Record<FormatName, number> & Partial<Record<LatentName, number>>>;
  /** Latents that are kept beside pages until these move; absent where there are none. */
  readonly latents?: LatentContext;
  /** Where pages may go that a plan would move to the archive; absent: nowhere else. */
  readonly pack?: PackContext;
  /** Bytes of the session that no move can free: open pages and sinks. */
  readonly fixedBytes: number;
  /** Start values of what decisions are compared with. */
  readonly thresholds: ThresholdSet;
  /** Layers that must stay in the window format. */
  readonly skipLayers: readonly number[];
  /** Worst format allowed per side (fixed `--cache-type` limits), or null. */
  readonly floor: { readonly k: FormatName; readonly v: FormatName } | null;
  /** Format in which page sides come back from originals; absent: none are kept, or the policy wants none back. */
  readonly comesBackIn?: FormatName;
  /**
   * Formats that keys may take in layers whose trials have shown outlier channels; absent: none, as in logs of earlier
   * versions.
   */
  readonly outlierKeys?: readonly FormatName[];
  /**
   * Which budget is kept where both cannot be; there when a session has both. Without it such a session fails, as logs
   * of earlier versions do.
   */
  readonly priority?: Priority;
}

/** Rule of a move that spends more divergence than its budget allows, since the budget in bytes is ranked first. */
export const KLD_GIVES_WAY = 'kld-gives-way';

/** Which of two budgets is kept when both cannot be: the one in bytes, or the one in divergence. */
export type Priority = 'bytes' | 'kld';

/**
 * How moves are chosen. Pure and deterministic: no clock, no random, no I/O; the same context and the same situations
 * give the same decisions, byte for byte (JSON).
 */
export interface Policy {
  /** Its name, which goes into the log. */
  readonly id: string;
  /** Goes into the log too: a changed decision is a new version. */
  readonly version: number;
  /** True when the engine must run trials for pages that become movable. */
  readonly needsTrials: boolean;
  /** True when formats are not to be tried that another of as many bytes replaces. */
  readonly skipsReplaced?: boolean;
  /** True when pages are to be tried again later, as the threshold 'trial.again' says. */
  readonly triesAgain?: boolean;
  /** True when a few tokens of a prompt are to be probed, as the thresholds 'probe.share' and 'probe.share.kld' say. */
  readonly probes?: boolean;
  /**
   * True when a stated divergence is to be measured where a session has originals, as the thresholds 'reread.…' say
   * (`reread` of situations).
   */
  readonly rereads?: boolean;
  /** True when it may want page sides back from originals (`wanted` of its sessions). */
  readonly takesBack?: boolean;
  /** True when originals of demoted page sides are to be kept and measured again, as the thresholds 'canary.…' say. */
  readonly keepsOriginals?: boolean;
  /**
   * Formats that it wants for keys with outlier channels, if any: trials then look for such keys, as the threshold
   * 'keys.outliers' says.
   */
  readonly outlierKeys?: readonly FormatName[];
  /** True when it is to be told where attention went (`masses` of situations). */
  readonly readsMasses?: boolean;
  /** True when it lets whole pages go though queries would see them: decisions for 'freed'. Others may not. */
  readonly evicts?: boolean;
  /**
   * Pairs that it moves pages to, where some of their formats are not among those that policies choose from: sessions
   * then know them.
   */
  readonly pairs?: readonly FormatPair[];
  /** True when it moves pages to latents. Where it does not, latents that a cache keeps stay beside their pages. */
  readonly holdsLatents?: boolean;
  /**
   * The coarsest formats that it goes to, if they are not LOWEST_FORMATS: the engine makes them the floor of its
   * sessions.
   */
  readonly lowest?: FormatPair;
  /**
   * Begins a session. What it remembers lives in the object it returns and nowhere else. Throws 'bad-thresholds',
   * 'bad-config', 'unsupported'.
   */
  open(context: PolicyContext): PolicySession;
}

/** One session of a policy: what it has seen, and what it makes of what it sees next. */
export interface PolicySession {
  /**
   * Plans moves; each is reported back among the `outcomes` of the next situation. Throws 'budget-too-small',
   * 'bad-value'.
   */
  decide(situation: Situation): readonly Decision[];
  /** Judges a planned move by what was measured just before it (`epsilonNow`: against the page's bytes of now). */
  judge(decision: Decision, epsilonNow: number | null): Verdict;
  /**
   * What the session taught: final thresholds, predicted KLD so far, machine states; for the report, the log and
   * memory/.
   */
  summary(): PolicySummary;
  /**
   * Layers whose quality or trust has changed its state since the last call, and why, for the log; left out: none ever
   * does. No decision follows from it.
   */
  takeChanges?(): readonly LayerChange[];
  /**
   * How many times as often as others the canaries of a layer are to be probed, from 1 on; left out: all alike. No
   * decision follows from it.
   */
  haste?(layer: number): number;
  /**
   * What a byte costs now that the session would give up first, in nats of its mean divergence; null: it has nothing
   * to give up. Left out: it does not know what bytes cost. No decision follows from the asking.
   */
  cheapest?(): number | null | undefined;
  /** How many moves it could make now, none of them cheaper than that; left out: it does not know. */
  movesLeft?(): number | undefined;
  /**
   * Whether a page is to be tried again when page `newest` comes to be tried; left out: all are. What a session is not
   * told it cannot decide by, so a replay does not ask.
   */
  repeats?(layer: number, page: number, newest: number): boolean;
  /** What it has found of errors behind their first trials; null, or left out: nothing. */
  course?(): Course | null;
  /**
   * Page sides that are to come back from originals, those first that it wants most; left out: none. Asked behind a
   * plan, where originals are kept; what came back is told as a change. No decision follows from the asking.
   */
  wanted?(): readonly WantedSide[];
}

/** A page side that is to be better than it is, or a page that is to have keys and values in place of its latent. */
export interface WantedSide extends PagePart {
  /** What it is in. */
  readonly from: PageForm;
  /** The format that it is to get. */
  readonly to: FormatName;
}

/** The quality of a layer, or its trust, is in another state. */
export interface LayerChange {
  /** Layer, from 0. */
  readonly layer: number;
  /** The layer's states after it, as in PolicySummary. */
  readonly state: string;
  /** Threshold that was crossed. */
  readonly threshold: string;
  /** What was compared with it. */
  readonly measured: number;
  /** Its value. */
  readonly bound: number;
  /**
   * What the measurement came from: 'error' measured over promised, 'topic' a shift of all errors, 'gain' a gain that
   * is not believed, 'codes' a page whose codes were damaged; or, where it is its trust that is in another state,
   * 'agreement' of trials with what earlier sessions told.
   */
  readonly source: 'error' | 'topic' | 'gain' | 'codes' | 'agreement';
}

/** What a policy has to say about a session. */
export interface PolicySummary {
  /** The price per byte, in nats, up to which moves are made now; 0 for policies without prices. */
  readonly priceThreshold: number;
  /** Predicted mean KLD of everything moved so far, in nats: c·Σ g·ε². */
  readonly predictedKld: number;
  /** State names per layer and region, e.g. 'archive/healthy/elevated/headroom'. */
  readonly layerStates: readonly string[];
  /** Worst ε of an accepted move per layer; 0 where nothing moved. */
  readonly layerEpsilonMax: readonly number[];
  /** The share of each layer in predictedKld, in nats. */
  readonly layerKld: readonly number[];
  /**
   * How much an error costs in this text beside others: what decisions go by, and what was measured in this session
   * alone. Absent for policies that do not know.
   */
  readonly text?: { readonly used: Estimate; readonly measured: Estimate | null };
  /** Absent where nothing was measured. */
  readonly measured?: MeasuredKld;
}
