// The little of SQLite that run.db needs: a connection, prepared statements, transactions.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

struct sqlite3;
struct sqlite3_stmt;

namespace rlk {

enum class SqliteOpen { kCreate, kWrite, kRead };

// Errors of every call: kIo with the file's path and SQLite's message.
class SqliteDb {
 public:
  SqliteDb(const std::string& path, SqliteOpen how);
  ~SqliteDb();
  SqliteDb(const SqliteDb&) = delete;
  SqliteDb& operator=(const SqliteDb&) = delete;

  void execute(const char* sql);
  std::int64_t integer(const char* sql);  // first column of the first row
  [[noreturn]] void fail_now(const char* doing) const;
  const std::string& path() const { return path_; }
  sqlite3* handle() const { return handle_; }

 private:
  void close();
  bool try_open(const std::string& name, int flags);

  std::string path_;
  sqlite3* handle_ = nullptr;
};

// A prepared statement. Binds count from 1 and columns from 0, both in the order of the calls.
// Texts and blobs are not copied: they must live until run() or next() returns.
class SqliteStatement {
 public:
  SqliteStatement(SqliteDb& db, const char* sql);
  ~SqliteStatement();
  SqliteStatement(const SqliteStatement&) = delete;
  SqliteStatement& operator=(const SqliteStatement&) = delete;

  SqliteStatement& bind(std::int64_t value);
  SqliteStatement& bind(double value);  // NaN as NULL
  SqliteStatement& bind(std::string_view text);
  SqliteStatement& bind_blob(const void* data, std::size_t size_bytes);

  void run();   // a statement without rows; ready for the next binds
  bool next();  // to the next row; false at the end, ready for the next binds

  std::int64_t integer();
  double number();  // NULL as NaN
  std::string text();
  std::string_view blob();  // valid until the next call of next()

 private:
  SqliteDb& db_;
  sqlite3_stmt* handle_ = nullptr;
  int bound_ = 0;
  int column_ = 0;
};

// Rolls back unless committed.
class SqliteTransaction {
 public:
  explicit SqliteTransaction(SqliteDb& db) : db_(db) { db_.execute("BEGIN IMMEDIATE"); }
  ~SqliteTransaction();
  SqliteTransaction(const SqliteTransaction&) = delete;
  SqliteTransaction& operator=(const SqliteTransaction&) = delete;
  void commit();

 private:
  SqliteDb& db_;
  bool done_ = false;
};

}  // namespace rlk
