export declare function cpuSeconds(): number | null;
