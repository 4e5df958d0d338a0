#include "tests/cli/program.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <thread>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "rlk/io/files.h"

extern char** environ;

namespace rlk {
namespace {

using Clock = std::chrono::steady_clock;

constexpr auto kPatience = std::chrono::seconds(60);

}  // namespace

nlohmann::json Outcome::json() const { return nlohmann::json::parse(out); }

Program::Program(const Arguments& arguments, const ProgramOptions& options)
    : stdout_path_(options.stdout_path.empty() ? folder_.file("out") : options.stdout_path) {
  Arguments all;
  if (options.max_file_kib > 0) {
    // In units of 512 bytes, as POSIX has it.
    all = {"/bin/sh", "-c",
           "ulimit -f " + std::to_string(2 * options.max_file_kib) + " && exec \"$0\" \"$@\""};
  }
  all.emplace_back(RLK_PROGRAM);
  all.insert(all.end(), arguments.begin(), arguments.end());
  std::vector<char*> pointers;
  for (std::string& argument : all) pointers.push_back(argument.data());
  pointers.push_back(nullptr);

  const std::string err = folder_.file("err");
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, stdout_path_.c_str(),
                                   O_WRONLY | O_CREAT, 0600);
  posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, err.c_str(), O_WRONLY | O_CREAT, 0600);
  const int error = posix_spawn(&pid_, pointers[0], &actions, nullptr, pointers.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) {
    ended_ = true;
    ADD_FAILURE() << pointers[0] << " cannot be started: " << std::strerror(error);
  }
}

Program::~Program() {
  if (ended()) return;
  send(SIGKILL);
  waitpid(pid_, &status_, 0);
}

void Program::send(int signal) const { kill(pid_, signal); }

bool Program::ended() {
  if (!ended_) ended_ = waitpid(pid_, &status_, WNOHANG) == pid_;
  return ended_;
}

bool Program::wait_for(const std::string& text) {
  const auto deadline = Clock::now() + kPatience;
  while (Clock::now() < deadline) {
    const bool last_look = ended();
    const std::string err = folder_.file("err");
    if (file_exists(err) && read_file(err).find(text) != std::string::npos) return true;
    if (last_look) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return false;
}

Outcome Program::wait() {
  const auto deadline = Clock::now() + kPatience;
  while (!ended() && Clock::now() < deadline) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  if (!ended()) {
    ADD_FAILURE() << "the program took longer than " << kPatience.count() << " s";
    send(SIGKILL);
    waitpid(pid_, &status_, 0);
    ended_ = true;
  }
  Outcome outcome;
  if (WIFEXITED(status_)) outcome.exit_code = WEXITSTATUS(status_);
  if (WIFSIGNALED(status_)) outcome.signal = WTERMSIG(status_);
  if (stdout_path_ == folder_.file("out")) outcome.out = read_file(stdout_path_);
  outcome.err = read_file(folder_.file("err"));
  return outcome;
}

Outcome run_program(const Arguments& arguments, const ProgramOptions& options) {
  return Program(arguments, options).wait();
}

void expect_refused(const Outcome& outcome, int exit_code,
                    const std::vector<std::string>& fragments) {
  EXPECT_EQ(outcome.exit_code, exit_code) << outcome.err;
  EXPECT_EQ(outcome.out, "");
  for (const std::string& fragment : fragments) {
    EXPECT_NE(outcome.err.find(fragment), std::string::npos)
        << "no '" << fragment << "' in: " << outcome.err;
  }
}

}  // namespace rlk
