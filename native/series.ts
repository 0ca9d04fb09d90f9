/**
 * Numbers of the entries of a log: each writer has a series, and the seqs of series n count from n · 2^32, so that a
 * seq names one entry of the whole log.
 */

/** Entries that a series may have. At 1,000 entries a second that is 49 days without a pause. */
export const SERIES_ENTRIES = 2 ** 32;

export const firstSeqOf = (series: number): number => series * SERIES_ENTRIES;
export const seriesOf = (seq: number): number => Math.floor(seq / SERIES_ENTRIES);
