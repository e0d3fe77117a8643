import { readFile } from "node:fs/promises";

/** One turn of the tide. */
export interface Tide {
  at: Date;
  metres: number;
}

export type Table = {
  harbour: string;
  tides: Tide[];
};

export class Almanach<T extends Tide> {
  private readonly cache = new Map<string, T[]>();

  constructor(private source: string) {}

  // The next turn after a moment.
  public next(after: Date): T | undefined {
    for (const [, tides] of this.cache) {
      if (tides.length === 0) continue;
      return tides.find((tide) => tide.at > after);
    }
    return undefined;
  }

  static async load(path: string): Promise<string> {
    return await readFile(path, "utf8");
  }
}

export const highest = (tides: Tide[]): number => {
  return Math.max(...tides.map((tide) => tide.metres));
};

export default function describe(tide: Tide): string {
  return `${tide.metres.toFixed(1)} m`;
}
