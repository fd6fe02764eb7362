// The types of a2e_plugin.mjs, for editors and tsc.
interface Types { string: string; integer: number; number: number; boolean: boolean; array: any[]; object: Record<string, any>; any: any }

export interface Input { type?: keyof Types; description?: string; optional?: boolean; enum?: readonly string[] }

/** The arguments of a call, by the input that the tool declares. */
export type Arguments<I extends Record<string, Input>> = {
  [K in keyof I]: (I[K]["type"] extends keyof Types ? Types[I[K]["type"]] : any) | (I[K]["optional"] extends true ? undefined : never);
};

/** One call. The signal aborts when nobody waits for the result any more. */
export interface Call {
  signal: AbortSignal;
  progress(percent: number, message?: string): void;
  log(message: string, level?: "debug" | "info" | "warn" | "error"): void;
}

export function tool<const I extends Record<string, Input> = {}>(definition: {
  name: string;
  description: string;
  tags?: string[];
  input?: I;
  run(args: Arguments<I>, call: Call): unknown;
}): void;

export function serve(options?: { maxParallel?: number }): void;
