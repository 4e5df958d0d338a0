// Runs the program in a process of its own and tells what came of it.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "tests/io/temporary_folder.h"

namespace rlk {

using Arguments = std::vector<std::string>;

struct Outcome {
  int exit_code = -1;  // -1: ended by `signal`
  int signal = 0;
  std::string out;
  std::string err;

  nlohmann::json json() const;  // of `out`
};

struct ProgramOptions {
  std::string stdout_path = {};   // empty: captured
  std::int64_t max_file_kib = 0;  // 0: no limit; else what a file may grow to
};

// A started program. The destructor kills it if it still runs.
class Program {
 public:
  explicit Program(const Arguments& arguments, const ProgramOptions& options = {});
  ~Program();
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  void send(int signal) const;
  // Waits until its standard error has `text`; false if the program ended without it.
  bool wait_for(const std::string& text);
  // Waits for the end; a program that takes longer than a minute is killed and fails the test.
  Outcome wait();

 private:
  bool ended();

  TemporaryFolder folder_;
  std::string stdout_path_;
  pid_t pid_ = -1;
  bool ended_ = false;
  int status_ = 0;
};

// Start to end.
Outcome run_program(const Arguments& arguments, const ProgramOptions& options = {});

// The program refused: this exit code, nothing on standard output, every fragment in its message.
void expect_refused(const Outcome& outcome, int exit_code,
                    const std::vector<std::string>& fragments);

}  // namespace rlk
