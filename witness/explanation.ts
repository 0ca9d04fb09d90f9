/** What the log says about one decision, as data. */
import type {
  AdapterProposal,
  Because,
  CanaryReport,
  Foresight,
  FormChange,
  LayerChange,
  PageForm,
  ScaledDigest,
  Situation,
  Threshold,
  TrialReport,
} from '../policy/index.ts';
import type { AskedFor } from './asked-for.ts';
import type { DecisionWithout, Without } from './counterfactual.ts';
import type { MendedSide, PromotedSide } from './entries/log-notes.ts';
import type { DecisionRow, LikeSession } from './types.ts';

/** One format that the page could have taken, by its trial when its exact content was still there. */
export interface Candidate {
  /** The format. */
  readonly format: PageForm;
  /** Mean change of the layer's output, as a share of the residual stream. */
  readonly epsilon: number;
  /** Bytes that the page side takes in this format, or the page in this latent. */
  readonly bytes: number;
  /**
   * Predicted divergence of this page side in this format, by the law that the session began with (c·g·ε² in version 1
   * of `price` and other policies).
   */
  readonly predictedKld: number;
}

/** Something that a session knew of others before one of its decisions. */
export interface KnownBefore {
  /**
   * `course`: how errors went on in earlier sessions. `later`: what was asked of the pages of its beginning. `learned`:
   * thresholds, gains and the law of errors.
   */
  readonly what: Exclude<Without, 'all'>;
  /** Earlier sessions that it rests on, of `later` answers; null: the log does not say. */
  readonly samples: number | null;
  /** The threshold file that the course is from, or of what was learned the law; null: none, or not known. */
  readonly source: string | null;
  /** What of it: ids of thresholds, 'law', 'gains', or numbers of pages. */
  readonly of: readonly string[];
  /** The sessions that were asked, nearest first, with the time of the entry that ended each, where it stands here. */
  readonly sessions: readonly (LikeSession & { readonly endMs: number | null })[];
}

/** What the log says about one decision. */
export interface Explanation {
  /** seq of the decision's entry. */
  readonly id: number;
  /** The decision, flat. */
  readonly decision: DecisionRow;
  /** Name of the model. */
  readonly model: string;
  /** Id of the policy. */
  readonly policy: string;
  /** First token of the page. */
  readonly tokenFirst: number;
  /** Last token of the page. */
  readonly tokenLast: number;
  /** Why it was planned. */
  readonly because: Because;
  /** Why it was then made or refused. */
  readonly verdict: Because;
  /** For whom it was made, where the policy of a pool asked its session for bytes; null: for itself alone. */
  readonly askedFor: AskedFor | null;
  /** The threshold as the session began with it; null when the rule needs none. */
  readonly threshold: Threshold | null;
  /** Which adapters were proposed for the session, and what it was opened with; null where nobody asked. */
  readonly proposal: { readonly proposed: AdapterProposal; readonly used: readonly ScaledDigest[] } | null;
  /** Whether the session keeps latents, and why; null where nobody left that to it. */
  readonly foresight: Foresight | null;
  /** Sessions found to be alike, when the threshold rests on them. */
  readonly neighbours: readonly LikeSession[];
  /** The trial made when the page became movable, with its seq; null when the policy needs none. */
  readonly trial: {
    readonly seq: number;
    readonly report: TrialReport;
    readonly candidates: readonly Candidate[];
  } | null;
  /**
   * The share of the attention of its layer that its page had before the decision, of all sealed pages, with the seq of
   * the situation that told it; null where the policy asks for none.
   */
  readonly attention: { readonly seq: number; readonly share: number } | null;
  /**
   * The state that the policy saw, with its seq; the trials of other pages are left out. null when its entry is
   * missing.
   */
  readonly situation: {
    readonly seq: number;
    readonly seen: Omit<Situation, 'trials' | 'outcomes' | 'masses'>;
    readonly planned: number;
    readonly refused: number;
  } | null;
  /**
   * What let the move through: the quality of its layer then, and what the cache needed of its budget against the
   * bounds that open lower formats; null where another policy than `price` decided, or entries are missing.
   */
  readonly guard: {
    /** 'healthy', 'watched', 'degraded' or 'recovering'; healthy where no entry says otherwise. */
    readonly quality: string;
    /** Whether that kept its pages from moving, which it does in logs of versions 1 to 4 alone. */
    readonly stops: boolean;
    /** Share of the byte budget that the cache and its next pages needed; null without one. */
    readonly pressure: number | null;
    /** Pressure from which 4-bit formats are open, and from which all are. */
    readonly warm: number;
    readonly archive: number;
    /** What let keys and values go, where the page became a latent: each bound with what it was compared with. */
    readonly latent: readonly Because[];
  } | null;
  /** Other moves of the same plan, refused ones first, at most ten of each. */
  readonly alternatives: readonly DecisionRow[];
  /** Earlier decisions about the same page, both sides, oldest first. */
  readonly before: readonly DecisionRow[];
  /** Later ones. */
  readonly after: readonly DecisionRow[];
  /**
   * What the original, where it was kept, said later about a move that was made; with the seq and the tokens of the
   * situation that told it.
   */
  readonly canaries: readonly (CanaryReport & { readonly seq: number; readonly tokens: number })[];
  /**
   * When a side of its page came back from its original for an answer (`share`: what the question gave to the page, of
   * the attention of the layer), or went again; with the seq and the tokens of the note that told it.
   */
  readonly promotions: readonly (PromotedSide & { readonly seq: number; readonly tokens: number })[];
  /** When codes of a side of its page were found to be others than those that were made, with the note that told it. */
  readonly damaged: readonly (MendedSide & { readonly seq: number; readonly tokens: number })[];
  /** When the sliding window of its layer had left the page behind, and it was freed; null: it never was. */
  readonly freed: { readonly seq: number; readonly tokens: number } | null;
  /** When sides of its page came back from originals because their layer was degraded, with the entry that tells it. */
  readonly restored: readonly (FormChange & { readonly seq: number; readonly tokens: number })[];
  /** Changes of the quality of its layer in the whole session. */
  readonly layer: readonly (LayerChange & { readonly seq: number; readonly tokens: number })[];
  /** What its session knew of others before. */
  readonly knownBefore: readonly KnownBefore[];
  /** What would have been decided without each of these, and without all where there are several. */
  readonly without: readonly (DecisionWithout & { readonly without: Without })[];
  /** Why that is not known; null: it is, or nothing was known before. */
  readonly withoutUnknown: string | null;
  /** All of it in words, for people. */
  readonly sentences: readonly { readonly title: string; readonly text: string }[];
}
