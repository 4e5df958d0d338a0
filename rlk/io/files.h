// Whole-file reads, and writes that either happen completely or not at all.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace rlk {

// All bytes of a regular file. Errors: kIo with the path and the system's reason.
std::string read_file(const std::string& path);

bool file_exists(const std::string& path);

// "folder/name"; no second slash when folder ends with one.
std::string join_path(std::string_view folder, std::string_view name);

// Creates the folder and its parents; an existing folder is fine. Errors: kIo.
void make_directories(const std::string& folder);

// A file that appears under its name only when commit() succeeds. The bytes go to "<path>.tmp",
// which commit() flushes to the disk and renames; the destructor of an uncommitted file removes
// it. So a full disk or a killed process leaves the earlier file as it was. One writer per path.
class AtomicFile {
 public:
  // Errors: kIo (missing or unwritable folder; a folder, device or pipe under that name).
  explicit AtomicFile(std::string path);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  // Errors: kIo (full disk, quota, file-size limit).
  void write(const void* data, std::size_t size_bytes);
  void write(std::string_view text) { write(text.data(), text.size()); }
  void commit();

 private:
  [[noreturn]] void fail_io(const char* action) const;

  std::string path_;
  std::string temporary_path_;
  int descriptor_ = -1;
};

// AtomicFile for bytes that are already in memory.
void write_file(const std::string& path, std::string_view bytes);

// A claim on a file, for as long as the object lives or the process runs; it cannot outlive a
// killed process. The file is created when it is not there, and stays.
class FileLock {
 public:
  // Errors: kIo, also when another process holds it.
  explicit FileLock(const std::string& path);
  ~FileLock();
  FileLock(const FileLock&) = delete;
  FileLock& operator=(const FileLock&) = delete;

 private:
  int descriptor_ = -1;
};

// Read-only memory map of a file. The file must not shrink while it is mapped.
class MappedFile {
 public:
  MappedFile() = default;
  // Errors: kIo.
  explicit MappedFile(const std::string& path);
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  const char* data() const { return data_; }
  std::size_t size_bytes() const { return size_bytes_; }
  std::string_view bytes() const { return {data_, size_bytes_}; }

 private:
  const char* data_ = nullptr;
  std::size_t size_bytes_ = 0;
};

}  // namespace rlk
