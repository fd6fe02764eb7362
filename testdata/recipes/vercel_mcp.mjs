// The AI SDK of Vercel with a2e's tools: node vercel_mcp.mjs 'Write a haiku into haiku.txt.'
import { createMCPClient } from "@ai-sdk/mcp";
import { Experimental_StdioMCPTransport as Stdio } from "@ai-sdk/mcp/mcp-stdio";
import { openai } from "@ai-sdk/openai";
import { generateText, stepCountIs } from "ai";

const a2e = await createMCPClient({ transport: new Stdio({ command: "./a2e", args: ["mcp", "serve"] }) });
try {
  const { text } = await generateText({
    model: openai.chat("gpt-5-mini"), // any server that speaks as OpenAI's does
    tools: await a2e.tools(),
    stopWhen: stepCountIs(20), // rounds of the model
    prompt: process.argv[2],
  });
  console.log(text);
} finally {
  await a2e.close();
}
