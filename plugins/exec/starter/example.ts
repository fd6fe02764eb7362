// Tools of a2e, in TypeScript.
import { serve, tool } from "./a2e_plugin.mjs";

tool({
  name: "word_count",
  description: "Count the words of a text.",
  input: { text: { type: "string", description: "Any text." } },
  run: ({ text }) => ({ words: text.split(/\s+/).filter(Boolean).length }),
});

serve();
