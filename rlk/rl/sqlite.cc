#include "rlk/rl/sqlite.h"

#include <sqlite3.h>

#include <cmath>
#include <filesystem>
#include <limits>

#include "rlk/core/error.h"

namespace rlk {

namespace {

// A path as an SQLite URI, which gives %, ? and # a meaning of their own.
std::string immutable_uri(const std::string& path) {
  std::string uri = "file:";
  for (const char c : path) {
    if (c == '%' || c == '?' || c == '#') {
      uri += fmt::format("%{:02x}", static_cast<unsigned>(c));
    } else {
      uri += c;
    }
  }
  return uri + "?immutable=1";
}

}  // namespace

SqliteDb::SqliteDb(const std::string& path, SqliteOpen how) : path_(path) {
  int flags = SQLITE_OPEN_NOMUTEX | SQLITE_OPEN_READWRITE;
  if (how == SqliteOpen::kCreate) flags |= SQLITE_OPEN_CREATE;
  // A reader also opens for writing where it may: only such a connection can recover the log that
  // a killed writer left, and clears the log's files away when it closes.
  bool opened = try_open(path, flags);
  // In a folder that allows no writing, a file without a log can be read as it is.
  if (!opened && how == SqliteOpen::kRead && std::filesystem::exists(path) &&
      !std::filesystem::exists(path + "-wal")) {
    opened =
        try_open(immutable_uri(path), SQLITE_OPEN_NOMUTEX | SQLITE_OPEN_READONLY | SQLITE_OPEN_URI);
  }
  if (!opened) {
    const std::string message = handle_ ? sqlite3_errmsg(handle_) : "out of memory";
    close();
    fail(ErrorCode::kIo, "{}: cannot open the run database: {}", path, message);
  }
  if (how == SqliteOpen::kRead) execute("PRAGMA query_only = 1");
}

// Opening is lazy in SQLite: only the first read tells whether this is a database.
bool SqliteDb::try_open(const std::string& name, int flags) {
  close();
  if (sqlite3_open_v2(name.c_str(), &handle_, flags, nullptr) != SQLITE_OK) return false;
  sqlite3_busy_timeout(handle_, 10000);
  return sqlite3_exec(handle_, "SELECT count(*) FROM sqlite_schema", nullptr, nullptr, nullptr) ==
         SQLITE_OK;
}

void SqliteDb::close() {
  sqlite3_close(handle_);
  handle_ = nullptr;
}

SqliteDb::~SqliteDb() { close(); }

void SqliteDb::fail_now(const char* doing) const {
  fail(ErrorCode::kIo, "{}: {}: {}", path_, doing, sqlite3_errmsg(handle_));
}

void SqliteDb::execute(const char* sql) {
  if (sqlite3_exec(handle_, sql, nullptr, nullptr, nullptr) != SQLITE_OK) fail_now(sql);
}

std::int64_t SqliteDb::integer(const char* sql) {
  SqliteStatement statement(*this, sql);
  return statement.next() ? statement.integer() : 0;
}

SqliteStatement::SqliteStatement(SqliteDb& db, const char* sql) : db_(db) {
  if (sqlite3_prepare_v3(db.handle(), sql, -1, SQLITE_PREPARE_PERSISTENT, &handle_, nullptr) !=
      SQLITE_OK) {
    db_.fail_now("cannot prepare a statement");
  }
}

SqliteStatement::~SqliteStatement() { sqlite3_finalize(handle_); }

SqliteStatement& SqliteStatement::bind(std::int64_t value) {
  sqlite3_bind_int64(handle_, ++bound_, value);
  return *this;
}

SqliteStatement& SqliteStatement::bind(double value) {
  sqlite3_bind_double(handle_, ++bound_, value);
  return *this;
}

SqliteStatement& SqliteStatement::bind(std::string_view text) {
  // A null pointer would bind NULL, not the empty text.
  const char* data = text.empty() ? "" : text.data();
  sqlite3_bind_text64(handle_, ++bound_, data, text.size(), SQLITE_STATIC, SQLITE_UTF8);
  return *this;
}

SqliteStatement& SqliteStatement::bind_blob(const void* data, std::size_t size_bytes) {
  sqlite3_bind_blob64(handle_, ++bound_, size_bytes ? data : "", size_bytes, SQLITE_STATIC);
  return *this;
}

void SqliteStatement::run() {
  const int result = sqlite3_step(handle_);
  if (result != SQLITE_DONE && result != SQLITE_ROW) {
    const std::string message = sqlite3_errmsg(db_.handle());
    sqlite3_reset(handle_);
    bound_ = 0;
    fail(ErrorCode::kIo, "{}: cannot write: {}", db_.path(), message);
  }
  sqlite3_reset(handle_);
  bound_ = 0;
}

bool SqliteStatement::next() {
  column_ = 0;
  const int result = sqlite3_step(handle_);
  if (result == SQLITE_ROW) return true;
  if (result != SQLITE_DONE) db_.fail_now("cannot read");
  sqlite3_reset(handle_);
  bound_ = 0;
  return false;
}

std::int64_t SqliteStatement::integer() { return sqlite3_column_int64(handle_, column_++); }

double SqliteStatement::number() {
  const int column = column_++;
  if (sqlite3_column_type(handle_, column) == SQLITE_NULL) {
    return std::numeric_limits<double>::quiet_NaN();
  }
  return sqlite3_column_double(handle_, column);
}

std::string SqliteStatement::text() { return std::string(blob()); }

std::string_view SqliteStatement::blob() {
  const int column = column_++;
  const void* data = sqlite3_column_blob(handle_, column);
  const int size_bytes = sqlite3_column_bytes(handle_, column);
  return {static_cast<const char*>(data), static_cast<std::size_t>(size_bytes)};
}

SqliteTransaction::~SqliteTransaction() {
  // After some errors SQLite has rolled back by itself; then this call has nothing to do.
  if (!done_) sqlite3_exec(db_.handle(), "ROLLBACK", nullptr, nullptr, nullptr);
}

void SqliteTransaction::commit() {
  db_.execute("COMMIT");
  done_ = true;
}

}  // namespace rlk
