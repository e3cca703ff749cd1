// Loads the plugin as opencode does, and calls its hooks: one JSON object per line in, one answer per line out.
import { createInterface } from "node:readline"

const [plugin, directory] = process.argv.slice(2)
const { HoldfastGuard } = await import(plugin)
const hooks = await HoldfastGuard({ directory })

for await (const line of createInterface({ input: process.stdin })) {
  const { hook, input, output } = JSON.parse(line)
  try {
    await hooks[hook](input, output)
    console.log(JSON.stringify({ passed: true, output }))
  } catch (error) {
    console.log(JSON.stringify({ passed: false, reason: error.message }))
  }
}
