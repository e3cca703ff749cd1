-- One acquire per request, each of a name nobody used before, so that every answer must be a grant.
--
-- The raw request comes from Python (BENCH_TEMPLATE) with `{name}` and, where a system limits the leases of
-- one user, `{user}` left open: one script serves every HTTP system, and each request is written down once.
-- It is made for one thread (wrk -t1), whose counter alone makes the names unique.

local template = os.getenv("BENCH_TEMPLATE")
local marker = os.getenv("BENCH_MARKER")
local prefix = os.getenv("BENCH_NAME_PREFIX")
local user_first = tonumber(os.getenv("BENCH_USER_FIRST"))
local leases_per_user = tonumber(os.getenv("BENCH_LEASES_PER_USER"))
local has_user = template:find("{user}", 1, true) ~= nil

local function split(text, mark)
  local pieces, from = {}, 1
  while true do
    local first, last = text:find(mark, from, true)
    if not first then break end
    pieces[#pieces + 1] = text:sub(from, first - 1)
    from = last + 1
  end
  pieces[#pieces + 1] = text:sub(from)
  return pieces
end

local pieces = split(template, "{name}")
local number = 0
local threads = {}

-- Globals, because done() runs in another Lua state and reads them with thread:get().
answers_2xx = 0
acquired = 0
sample = ""

function setup(thread)
  threads[#threads + 1] = thread
end

function request()
  local text = table.concat(pieces, prefix .. string.format("%012d", number))
  if has_user then
    local user = user_first + math.floor(number / leases_per_user)
    text = text:gsub("{user}", string.format("%06d", user))
  end
  number = number + 1
  return text
end

function response(status, headers, body)
  local good = status >= 200 and status < 300
  if good then answers_2xx = answers_2xx + 1 end
  if good and body:find(marker, 1, true) then
    acquired = acquired + 1
  elseif sample == "" then
    sample = status .. " " .. body:sub(1, 200)
  end
end

function done(summary, latency, requests)
  local good, grants, wrong = 0, 0, ""
  for _, thread in ipairs(threads) do
    good = good + thread:get("answers_2xx")
    grants = grants + thread:get("acquired")
    wrong = thread:get("sample")
  end
  local e = summary.errors
  io.write(string.format(
    '\nBENCH {"duration_us":%d,"answers":%d,"answers_2xx":%d,"acquired":%d,"errors":%d,"p50_us":%d,"p99_us":%d,"sample":"%s"}\n',
    summary.duration, summary.requests, good, grants, e.connect + e.read + e.write + e.timeout,
    latency:percentile(50), latency:percentile(99), (wrong:gsub('[%c"\\]', " "))))
end
