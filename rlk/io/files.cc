#include "rlk/io/files.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <system_error>
#include <utility>

#include "rlk/core/error.h"

namespace rlk {
namespace {

std::string reason(int error_number) { return std::generic_category().message(error_number); }

// Closes on every way out of a function.
class Descriptor {
 public:
  explicit Descriptor(int value) : value_(value) {}
  ~Descriptor() {
    if (value_ >= 0) ::close(value_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return value_; }

 private:
  int value_;
};

// Opens a regular file and tells its size.
int open_for_reading(const std::string& path, std::size_t& size_bytes) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) fail(ErrorCode::kIo, "{}: cannot open: {}", path, reason(errno));
  struct stat status {};
  if (::fstat(descriptor, &status) != 0) {
    const int error_number = errno;
    ::close(descriptor);
    fail(ErrorCode::kIo, "{}: cannot stat: {}", path, reason(error_number));
  }
  if (!S_ISREG(status.st_mode)) {
    ::close(descriptor);
    fail(ErrorCode::kIo, "{}: cannot read: not a regular file", path);
  }
  size_bytes = static_cast<std::size_t>(status.st_size);
  return descriptor;
}

// The rename reaches the disk only with the folder. File systems that cannot flush a folder are
// left to their own promise.
void flush_folder_of(const std::string& path) {
  std::filesystem::path folder = std::filesystem::path(path).parent_path();
  if (folder.empty()) folder = ".";
  const Descriptor descriptor(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (descriptor.get() >= 0) ::fsync(descriptor.get());
}

}  // namespace

std::string read_file(const std::string& path) {
  std::size_t size_bytes = 0;
  const Descriptor descriptor(open_for_reading(path, size_bytes));
  std::string bytes(size_bytes, '\0');
  std::size_t done = 0;
  while (done < size_bytes) {
    const ssize_t got = ::read(descriptor.get(), bytes.data() + done, size_bytes - done);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail(ErrorCode::kIo, "{}: cannot read: {}", path, reason(errno));
    if (got == 0) break;
    done += static_cast<std::size_t>(got);
  }
  bytes.resize(done);
  return bytes;
}

bool file_exists(const std::string& path) {
  std::error_code error;
  return std::filesystem::exists(path, error);
}

std::string join_path(std::string_view folder, std::string_view name) {
  std::string path(folder);
  if (!path.empty() && path.back() != '/') path += '/';
  return path.append(name);
}

void make_directories(const std::string& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) fail(ErrorCode::kIo, "{}: cannot create the folder: {}", folder, error.message());
  if (!std::filesystem::is_directory(folder, error)) {
    fail(ErrorCode::kIo, "{}: cannot create the folder: {}", folder, reason(ENOTDIR));
  }
}

AtomicFile::AtomicFile(std::string path) : path_(std::move(path)), temporary_path_(path_ + ".tmp") {
  // The rename would put a file in the place of a device or a pipe.
  std::error_code ignored;
  const std::filesystem::file_status status = std::filesystem::status(path_, ignored);
  if (std::filesystem::exists(status) && !std::filesystem::is_regular_file(status)) {
    fail(ErrorCode::kIo, "{}: cannot write: not a regular file", path_);
  }
  descriptor_ = ::open(temporary_path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (descriptor_ < 0) fail_io("create");
}

AtomicFile::~AtomicFile() {
  if (descriptor_ < 0) return;
  ::close(descriptor_);
  ::unlink(temporary_path_.c_str());
}

void AtomicFile::fail_io(const char* action) const {
  fail(ErrorCode::kIo, "{}: cannot {}: {}", path_, action, reason(errno));
}

void AtomicFile::write(const void* data, std::size_t size_bytes) {
  RLK_ASSERT(descriptor_ >= 0);
  const char* next = static_cast<const char*>(data);
  while (size_bytes > 0) {
    const ssize_t done = ::write(descriptor_, next, size_bytes);
    if (done < 0 && errno == EINTR) continue;
    if (done < 0) fail_io("write");
    next += done;
    size_bytes -= static_cast<std::size_t>(done);
  }
}

void AtomicFile::commit() {
  RLK_ASSERT(descriptor_ >= 0);
  if (::fsync(descriptor_) != 0) fail_io("flush");
  if (std::rename(temporary_path_.c_str(), path_.c_str()) != 0) fail_io("rename into place");
  ::close(std::exchange(descriptor_, -1));
  flush_folder_of(path_);
}

void write_file(const std::string& path, std::string_view bytes) {
  AtomicFile file(path);
  file.write(bytes);
  file.commit();
}

FileLock::FileLock(const std::string& path)
    : descriptor_(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644)) {
  if (descriptor_ < 0) fail(ErrorCode::kIo, "{}: cannot open: {}", path, reason(errno));
  if (::flock(descriptor_, LOCK_EX | LOCK_NB) == 0) return;
  const int error = errno;
  ::close(descriptor_);
  if (error == EWOULDBLOCK) fail(ErrorCode::kIo, "{}: another process holds it", path);
  fail(ErrorCode::kIo, "{}: cannot lock: {}", path, reason(error));
}

FileLock::~FileLock() { ::close(descriptor_); }

MappedFile::MappedFile(const std::string& path) {
  const Descriptor descriptor(open_for_reading(path, size_bytes_));
  if (size_bytes_ == 0) return;  // an empty map is not allowed
  void* map = ::mmap(nullptr, size_bytes_, PROT_READ, MAP_PRIVATE, descriptor.get(), 0);
  if (map == MAP_FAILED) fail(ErrorCode::kIo, "{}: cannot map: {}", path, reason(errno));
  data_ = static_cast<const char*>(map);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      size_bytes_(std::exchange(other.size_bytes_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_bytes_, other.size_bytes_);
  return *this;
}

MappedFile::~MappedFile() {
  if (data_) ::munmap(const_cast<char*>(data_), size_bytes_);
}

}  // namespace rlk
