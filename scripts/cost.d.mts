export declare function cpuSeconds(): number | null;
export function costTable(
  head: string,
  rows: readonly { readonly title: string; readonly seconds: number; readonly cpuSeconds: number | null }[],
): string[];
