#include "rlk/io/files.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>

#include "tests/io/error_matchers.h"
#include "tests/io/temporary_folder.h"

namespace rlk {
namespace {

TEST(Files, ReadBackWhatWasWritten) {
  const TemporaryFolder folder;
  const std::string bytes("a\0b\xff\n", 5);
  write_file(folder.file("x"), bytes);
  EXPECT_EQ(read_file(folder.file("x")), bytes);
  EXPECT_EQ(MappedFile(folder.file("x")).bytes(), bytes);
  write_file(folder.file("x"), "");
  EXPECT_EQ(read_file(folder.file("x")), "");
  EXPECT_EQ(MappedFile(folder.file("x")).size_bytes(), 0u);
}

TEST(Files, ErrorsNamePathAndReason) {
  const TemporaryFolder folder;
  const std::string missing = folder.file("missing");
  expect_error(ErrorCode::kIo, {missing, "No such file"}, [&] { read_file(missing); });
  expect_error(ErrorCode::kIo, {missing, "No such file"}, [&] { MappedFile{missing}; });
  expect_error(ErrorCode::kIo, {folder.path(), "not a regular file"},
               [&] { read_file(folder.path()); });
  expect_error(ErrorCode::kIo, {missing + "/x", "No such file"},
               [&] { write_file(missing + "/x", "y"); });
  write_file(folder.file("file"), "y");
  expect_error(ErrorCode::kIo, {folder.file("file/x"), "Not a directory"},
               [&] { write_file(folder.file("file/x"), "y"); });
  expect_error(ErrorCode::kIo, {folder.file("file/x")},
               [&] { make_directories(folder.file("file/x")); });
  expect_error(ErrorCode::kIo, {folder.file("file")},
               [&] { make_directories(folder.file("file")); });
}

TEST(Files, MakeDirectoriesAcceptsThoseThatAreThere) {
  const TemporaryFolder folder;
  make_directories(folder.file("a/b/c"));
  make_directories(folder.file("a/b/c"));
  EXPECT_TRUE(file_exists(folder.file("a/b/c")));
}

TEST(AtomicFile, AppearsOnlyWithCommit) {
  const TemporaryFolder folder;
  write_file(folder.file("x"), "old");
  {
    AtomicFile file(folder.file("x"));
    file.write("half of the ne");
    EXPECT_EQ(read_file(folder.file("x")), "old");
  }
  EXPECT_EQ(read_file(folder.file("x")), "old");
  EXPECT_FALSE(file_exists(folder.file("x.tmp")));
}

// A file-size limit makes write() fail as a full disk does.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) : handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    ::getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit limit{bytes, before_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileSizeLimit() {
    ::setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, handler_);
  }

 private:
  rlimit before_{};
  void (*handler_)(int);
};

TEST(AtomicFile, LosesNothingWhenTheDiskIsFull) {
  const TemporaryFolder folder;
  const std::string path = folder.file("x");
  write_file(path, "old");
  {
    const FileSizeLimit limit(1000);
    expect_error(ErrorCode::kIo, {path, "cannot write", "File too large"},
                 [&] { write_file(path, std::string(5000, 'n')); });
  }
  EXPECT_EQ(read_file(path), "old");
  EXPECT_FALSE(file_exists(path + ".tmp"));
}

TEST(Files, JoinPathPutsOneSlash) {
  EXPECT_EQ(join_path("a", "b"), "a/b");
  EXPECT_EQ(join_path("a/", "b"), "a/b");
  EXPECT_EQ(join_path("", "b"), "b");
}

}  // namespace
}  // namespace rlk
