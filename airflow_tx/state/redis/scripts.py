"""The Lua scripts of a Redis state. Every script compares the fence before it changes anything.

Redis runs no other command while a script runs. Scripts do not compute values, because Lua's numbers are doubles. For
scripts, values and txids are texts to compare and store.

A state has six keys. The state's name is their hash tag, so a server that shards keys keeps all six on one node:

* fence, a hash: the grant that raised it, whether its update is complete, the run of the server, and the counts of keys
* values, a hash: key -> values
* touched, a hash: key -> "<writer>|<values before>", for each key that the transaction in the fence has written
* undo, a hash: the same for an outranked attempt, while its roll-back is running
* schema, a text: names and types of the columns
* receipts, a stream: one receipt per transaction, only for the most recent transactions

`touched` is used to undo an attempt, and to skip a transactional value that already has the transaction. An SQL state
has the txid, token, chunk and previous value in each row instead. Only the transaction in the fence can be undone, so
`touched` is enough.
"""

from __future__ import annotations

KEYS = ("fence", "values", "touched", "undo", "schema", "receipts")
RECEIPTS_KEPT = 10_000
"""Approximate maximum number of receipts that a state keeps.

The number is limited because Redis keeps receipts in memory.
"""

# Lua's stack has 8000 entries. It overflows if unpack() returns too many values, because the
# command itself also needs some entries.
_COMMON = """
local FENCE, VALUES, TOUCHED, UNDO, SCHEMA, RECEIPTS = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local SLICE = 7000

local function held()
  local f = redis.call('HMGET', FENCE, 'incarnation', 'generation', 'txid', 'attempt', 'epoch', 'nonce')
  if not f[1] then return '' end
  return table.concat(f, '|')
end

local function run()
  return string.match(redis.call('INFO', 'server'), 'run_id:(%w+)')
end

local function counted()
  return redis.call('HLEN', VALUES) .. ':' .. redis.call('HLEN', TOUCHED) .. ':' .. redis.call('HLEN', UNDO)
end

local function noted()
  return redis.call('HGET', FENCE, 'counts') or '0:0:0'
end

-- The digest of one key of the last update:
-- an older copy of the values has another digest.
-- It is not compared with the fence of another grant.
local function sampled(sample)
  local value = redis.call('HGET', VALUES, sample)
  local digest = redis.sha1hex(value or '')
  return held() .. ' ' .. digest
end

local function is_changed()
  if counted() ~= noted() then return true end
  local last = redis.call('HMGET', FENCE, 'sample', 'sampled')
  if not last[1] or not last[2] then return false end
  local was, now = last[2], sampled(last[1])
  local same = string.sub(was, 1, -41)
  if same ~= string.sub(now, 1, -41) then
    return false
  end
  return was ~= now
end

local function note_counts()
  redis.call('HSET', FENCE, 'counts', counted())
  local sample = redis.call('HGET', FENCE, 'sample')
  if sample then redis.call('HSET', FENCE, 'sampled', sampled(sample)) end
end

-- Many keys come as one text, with a line end after each (JSON has none).
-- A client takes far longer to send them one by one.
local function lines(text)
  local found = {}
  for line in string.gmatch(text, '([^\\n]*)\\n') do found[#found + 1] = line end
  return found
end

local function put_all(key, pairs_)
  for s = 1, #pairs_, SLICE do
    redis.call('HSET', key, unpack(pairs_, s, math.min(s + SLICE - 1, #pairs_)))
  end
end

local function get_all(key, fields)
  local found = {}
  for s = 1, #fields, SLICE do
    local part = redis.call('HMGET', key, unpack(fields, s, math.min(s + SLICE - 1, #fields)))
    for i = 1, #part do found[#found + 1] = part[i] end
  end
  return found
end

local function drop_all(key, fields)
  for s = 1, #fields, SLICE do
    redis.call('HDEL', key, unpack(fields, s, math.min(s + SLICE - 1, #fields)))
  end
end

-- The update is complete. Its receipt replaces the receipt of an earlier grant of the transaction.
local function complete(txid, attempt, receipt, hash)
  redis.call('HSET', FENCE, 'applied', '1')
  if receipt == '' then return end
  local last = redis.call('HMGET', FENCE, 'receipt_of', 'receipt')
  if last[1] == txid then redis.call('XDEL', RECEIPTS, last[2]) end
  local fields = {'txid', txid, 'attempt', attempt, 'receipt', receipt, 'hash', hash}
  local id = redis.call('XADD', RECEIPTS, 'MAXLEN', '~', %d, '*', unpack(fields))
  redis.call('HSET', FENCE, 'receipt_of', txid, 'receipt', id)
end

local function before(entry)
  return string.sub(entry, string.find(entry, '|', 1, true) + 1)
end

local function base(entry)
  local found = before(entry)
  return found == '' and 'null' or found
end

-- Rolls back about a slice of the keys of an outranked attempt, and returns where to continue; '0' when all are done.
local function undo(cursor)
  local done = 0
  repeat
    local scanned = redis.call('HSCAN', UNDO, cursor, 'COUNT', 1000)
    cursor = scanned[1]
    local back, gone, over = {}, {}, {}
    for i = 1, #scanned[2], 2 do
      local field, prev = scanned[2][i], before(scanned[2][i + 1])
      over[#over + 1] = field
      if prev == '' then
        gone[#gone + 1] = field
      else
        back[#back + 1] = field
        back[#back + 1] = prev
      end
    end
    put_all(VALUES, back)
    drop_all(VALUES, gone)
    drop_all(UNDO, over)
    done = done + #over
  until cursor == '0' or done >= SLICE
  return cursor
end
""".replace("%d", str(RECEIPTS_KEPT))

# ARGV: the grant that the fence must hold; this grant; its txid; "1" if the state is opaque. Then
# "1" to accept values that differ from the counts; "1" to refuse values of the transaction. Then
# "1" to undo what this grant has written; the fields of the fence.
RAISE = (
    _COMMON
    + """
local expected, mine, txid, opaque, accept = ARGV[1], ARGV[2], ARGV[3], ARGV[4] == '1', ARGV[5] == '1'
local found = held()
if found ~= expected then return {'moved'} end
if not accept and is_changed() then return {'counts', counted(), noted()} end
if ARGV[6] == '1' then
  -- The fence holds a grant of this transaction. A guard notes how many of its commands ran.
  local ran = redis.call('HMGET', FENCE, 'LAST_COMMIT', 'done')
  if redis.call('EXISTS', TOUCHED) == 1 or (ran[1] == txid and tonumber(ran[2]) > 0) then return {'held'} end
end
if found ~= mine or ARGV[7] == '1' then
  if redis.call('HGET', FENCE, 'txid') ~= txid then
    redis.call('UNLINK', TOUCHED)
  elseif opaque and redis.call('EXISTS', TOUCHED) == 1 then
    -- No script writes values during an undo, so UNDO is free for these keys.
    redis.call('RENAME', TOUCHED, UNDO)
  end
  redis.call('HSET', FENCE, unpack(ARGV, 8))
end
redis.call('HSET', FENCE, 'run', run())
local cursor = undo('0')
note_counts()
return {'ok', cursor}
"""
)

# ARGV: this grant; where to continue.
UNDO = (
    _COMMON
    + """
if held() ~= ARGV[1] then return {'outranked'} end
local cursor = undo(ARGV[2])
note_counts()
return {'ok', cursor}
"""
)

# Count the keys again after a manual change of the values. ARGV: the grant that the fence must
# hold; the new batch of the fence.
RECOUNT = (
    _COMMON
    + """
if held() ~= ARGV[1] then return {'moved'} end
if ARGV[1] ~= '' then
  note_counts()
  redis.call('HSET', FENCE, 'batch', ARGV[2])
end
return {'ok'}
"""
)

# Return the values from which each key's update starts, as one JSON array. JSON null means that the
# key does not exist. JSON false means that a transactional value already contains this transaction.
#
# ARGV: the grant that the fence must hold; "1" if it has this txid; "1" if the state is opaque.
# Then the token of this writer if the fence holds it, or "". Then this writer; the keys.
FETCH = (
    _COMMON
    + """
local expected, same, opaque, token, writer = ARGV[1], ARGV[2] == '1', ARGV[3] == '1', ARGV[4], ARGV[5]
if held() ~= expected then return {'moved'} end
local fields = lines(ARGV[6])
local values = get_all(VALUES, fields)
for i = 1, #values do
  if not values[i] then values[i] = 'null' end
end
if same and redis.call('EXISTS', TOUCHED) == 1 then
  local touched = get_all(TOUCHED, fields)
  for i = 1, #fields do
    local entry = touched[i]
    if entry then
      if token ~= '' and string.sub(entry, 1, #token) == token and string.sub(entry, 1, #writer) ~= writer then
        return {'conflict', fields[i], entry}
      end
      if opaque then
        values[i] = base(entry)
      else
        values[i] = 'false'
      end
    end
  end
end
if redis.call('EXISTS', UNDO) == 1 then
  local undone = get_all(UNDO, fields)
  for i = 1, #fields do
    if undone[i] then values[i] = base(undone[i]) end
  end
end
return {'ok', '[' .. table.concat(values, ',') .. ']'}
"""
)

# ARGV: this grant; its token; this writer; "1" if the state is opaque; "1" if this completes the
# update. Then the schema; the receipt in four parts. Then the keys and their values, if there are
# any.
PUT = (
    _COMMON
    + """
local mine, token, writer, opaque, last, schema = ARGV[1], ARGV[2], ARGV[3], ARGV[4] == '1', ARGV[5] == '1', ARGV[6]
if held() ~= mine then return {'outranked'} end
if redis.call('HGET', FENCE, 'run') ~= run() then return {'restarted'} end
if redis.call('EXISTS', UNDO) == 1 then return {'undoing'} end
if is_changed() then return {'counts', counted(), noted()} end
if #ARGV > 10 then
  local known = redis.call('GET', SCHEMA)
  if known and known ~= schema then return {'schema', known} end
  local fields, news = lines(ARGV[11]), lines(ARGV[12])
  local touched = get_all(TOUCHED, fields)
  for i = 1, #fields do
    local entry = touched[i]
    if entry and string.sub(entry, 1, #token) == token and string.sub(entry, 1, #writer) ~= writer then
      return {'conflict', fields[i], entry}
    end
  end
  local stored = opaque and get_all(VALUES, fields) or {}
  local values, writers = {}, {}
  for i = 1, #fields do
    local entry = touched[i]
    if not entry then
      writers[#writers + 1] = fields[i]
      writers[#writers + 1] = writer .. (stored[i] or '')
    elseif not opaque then
      -- The value has the transaction already. Note the writer, so that a replay also finds two chunks with one key.
      writers[#writers + 1] = fields[i]
      writers[#writers + 1] = writer
    end
    if opaque or not entry then
      values[#values + 1] = fields[i]
      values[#values + 1] = news[i]
    end
  end
  if not known then redis.call('SET', SCHEMA, schema) end
  put_all(VALUES, values)
  put_all(TOUCHED, writers)
  if fields[1] then redis.call('HSET', FENCE, 'sample', fields[1]) end
end
if last then complete(ARGV[7], ARGV[8], ARGV[9], ARGV[10]) end
note_counts()
return {'ok'}
"""
)

# A guard has only the fence, which records how many commands of a transaction have run.
#
# ARGV: this grant; the receipt in four parts; the digest of all commands; the number of earlier
# commands. Then "1" if these are the last commands. Then for each command, the number of its parts,
# and the parts.
COMMANDS = (
    _COMMON
    + """
local mine, txid, digest, start, last = ARGV[1], ARGV[2], ARGV[6], tonumber(ARGV[7]), ARGV[8] == '1'
if held() ~= mine then return {'outranked'} end
if redis.call('HGET', FENCE, 'run') ~= run() then return {'restarted'} end
if digest == '' then  -- a skip
  complete(txid, ARGV[3], ARGV[4], ARGV[5])
  return {'ok'}
end
local at = redis.call('HMGET', FENCE, 'LAST_COMMIT', 'done', 'digest')
local done = 0
if at[1] == txid then
  done = tonumber(at[2])
  if at[3] ~= digest and done > 0 then return {'changed', at[3]} end
end
local i, number, failed = 9, start, nil
while i <= #ARGV do
  local parts = tonumber(ARGV[i])
  number = number + 1
  if number > done then
    local reply = redis.pcall(unpack(ARGV, i + 1, i + parts))
    if type(reply) == 'table' and reply.err then
      failed = {'failed', tostring(number), reply.err}
      number = number - 1
      break
    end
    done = number
  end
  i = i + parts + 1
end
-- Note this also after a failure, because commands that ran must not run again.
redis.call('HSET', FENCE, 'LAST_COMMIT', txid, 'done', tostring(done), 'digest', digest)
if failed then return failed end
if last then complete(txid, ARGV[3], ARGV[4], ARGV[5]) end
return {'ok'}
"""
)
