/*
Holdfast's guard for opencode: asks `holdfast guard hook` before every tool call, and rejects the call unless the answer
is yes. `holdfast skill install --for opencode --hooks` writes this file, and `holdfast skill uninstall` removes it.
  digest: "211562bf8938ae9e"
*/
import { spawn } from "node:child_process"

const TIMEOUT_MS = 30_000

// Runs the hook. Whatever goes wrong has an exit code other than 0, and so rejects the call.
function runHook(event) {
  return new Promise((resolve) => {
    let timer
    const finish = (answer) => {
      clearTimeout(timer)
      resolve(answer)
    }
    const fail = (error) => finish({ code: -1, out: "", err: `holdfast guard: cannot run \`holdfast\`: ${error.message}` })
    try {
      const hook = spawn("holdfast", ["guard", "hook", "--host", "opencode"], { cwd: event.cwd })
      timer = setTimeout(() => hook.kill("SIGKILL"), TIMEOUT_MS)
      let out = ""
      let err = ""
      hook.stdout.setEncoding("utf8").on("data", (text) => (out += text))
      hook.stderr.setEncoding("utf8").on("data", (text) => (err += text))
      hook.on("error", fail)
      hook.on("close", (code) => finish({ code: code ?? -1, out, err }))
      hook.stdin.on("error", () => {})
      hook.stdin.end(JSON.stringify(event))
    } catch (error) {
      fail(error)
    }
  })
}

function messageOf(output) {
  try {
    return JSON.parse(output).systemMessage ?? ""
  } catch {
    return ""
  }
}

export const HoldfastGuard = async ({ directory }) => {
  const parents = new Map() // A subagent has a session of its own: the id of its parent's.
  const messages = new Map() // By call: what the guard says about a call that passes.

  const eventOf = (name, session, more) => {
    let root = session
    while (parents.get(root)) root = parents.get(root)
    const agent = root === session ? {} : { agent_id: session }
    return { hook_event_name: name, session_id: root, ...agent, cwd: directory, ...more }
  }

  return {
    "tool.execute.before": async (input, output) => {
      const call = { tool_name: input.tool, tool_input: output.args, tool_use_id: input.callID }
      const answer = await runHook(eventOf("PreToolUse", input.sessionID, call))
      if (answer.code !== 0) {
        throw new Error(answer.err.trim() || `holdfast guard: the hook ended with ${answer.code}; nothing passes`)
      }
      const message = messageOf(answer.out)
      if (message) messages.set(input.callID, message)
    },
    "tool.execute.after": async (input, output) => {
      const message = messages.get(input.callID)
      messages.delete(input.callID)
      if (message && typeof output.output === "string") output.output += `\n\n${message}`
    },
    event: async ({ event }) => {
      const { info, sessionID } = event.properties ?? {}
      if (event.type === "session.created" || event.type === "session.updated") {
        if (info?.parentID) parents.set(info.id, info.parentID)
      } else if (event.type === "session.idle") {
        await runHook(eventOf(parents.has(sessionID) ? "SubagentStop" : "Stop", sessionID, {}))
      } else if (event.type === "session.deleted" && info?.id) {
        await runHook(eventOf(parents.has(info.id) ? "SubagentStop" : "SessionEnd", info.id, {}))
        parents.delete(info.id)
      }
    },
  }
}
