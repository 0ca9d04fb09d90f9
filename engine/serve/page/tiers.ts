/** Tiers: what each is called, and its colour, which the style sheet has. */

export interface Tier {
  readonly name: string;
  /** The tiers of the engine's metrics that it is. */
  readonly of: readonly string[];
  readonly means: string;
}

export const TIERS: readonly Tier[] = [
  { name: 'window', of: ['open', 'sinks'], means: 'the open pages and the first tokens' },
  { name: 'exact', of: ['exact'], means: '8 bits and more' },
  { name: 'warm', of: ['warm'], means: 'four bits' },
  { name: 'archive', of: ['archive'], means: 'three bits and fewer' },
  { name: 'latent', of: ['latent'], means: 'layer inputs, of which keys and values are made again' },
  { name: 'kept', of: ['kept'], means: 'originals that are kept to be measured again' },
  { name: 'parked', of: ['parked'], means: 'of sessions that wait' },
];

/** The colour of a tier now, in the scheme of the reader. */
export const colourOf = (name: string): string =>
  getComputedStyle(document.documentElement).getPropertyValue(`--tier-${name}`).trim();
