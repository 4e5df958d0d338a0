// The verifier `command`: a process of the user's that grades responses.
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstring>
#include <ctime>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "rlk/core/error.h"
#include "rlk/rl/verifier.h"

extern char** environ;

namespace rlk {
namespace {

using nlohmann::json;
using Clock = std::chrono::steady_clock;

constexpr std::size_t kMaxLineBytes = 1 << 20;
constexpr auto kGoodbye = std::chrono::seconds(1);

class FileDescriptor {
 public:
  explicit FileDescriptor(int fd = -1) : fd_(fd) {}
  ~FileDescriptor() { close(); }
  FileDescriptor(const FileDescriptor&) = delete;
  FileDescriptor& operator=(const FileDescriptor&) = delete;
  void reset(int fd) {
    close();
    fd_ = fd;
  }
  void close() {
    if (fd_ >= 0) ::close(fd_);
    fd_ = -1;
  }
  int get() const { return fd_; }

 private:
  int fd_;
};

// A write to a pipe that nobody reads raises SIGPIPE, which would end us. It is held back in this
// thread while one of these lives, and taken off the queue before it can be delivered.
class NoSigPipe {
 public:
  NoSigPipe() {
    sigemptyset(&set_);
    sigaddset(&set_, SIGPIPE);
    sigset_t pending;
    sigpending(&pending);
    was_pending_ = sigismember(&pending, SIGPIPE) == 1;
    pthread_sigmask(SIG_BLOCK, &set_, &old_);
  }
  ~NoSigPipe() {
    const timespec now{};
    if (!was_pending_) {
      while (sigtimedwait(&set_, nullptr, &now) < 0 && errno == EINTR) {
      }
    }
    pthread_sigmask(SIG_SETMASK, &old_, nullptr);
  }
  NoSigPipe(const NoSigPipe&) = delete;
  NoSigPipe& operator=(const NoSigPipe&) = delete;

 private:
  sigset_t set_;
  sigset_t old_;
  bool was_pending_ = false;
};

// A child with pipes at its standard input and output, in a process group of its own: Ctrl-C on the
// terminal reaches only us, and end() reaches also what the child has started.
class Process {
 public:
  Process(const std::vector<std::string>& command, const std::string& dir) {
    int in[2];
    int out[2];
    if (pipe2(in, O_CLOEXEC) != 0) refuse(command, errno);
    to_child_.reset(in[1]);
    FileDescriptor child_in(in[0]);
    if (pipe2(out, O_CLOEXEC) != 0) refuse(command, errno);
    from_child_.reset(out[0]);
    FileDescriptor child_out(out[1]);
    fcntl(to_child_.get(), F_SETFL, O_NONBLOCK);
    fcntl(from_child_.get(), F_SETFL, O_NONBLOCK);

    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, child_in.get(), STDIN_FILENO);
    posix_spawn_file_actions_adddup2(&actions, child_out.get(), STDOUT_FILENO);
    if (!dir.empty()) posix_spawn_file_actions_addchdir_np(&actions, dir.c_str());
    posix_spawnattr_t attributes;
    posix_spawnattr_init(&attributes);
    sigset_t none;
    sigemptyset(&none);
    sigset_t defaults;
    sigemptyset(&defaults);
    for (const int signal : {SIGINT, SIGTERM, SIGPIPE, SIGXFSZ}) sigaddset(&defaults, signal);
    posix_spawnattr_setflags(
        &attributes, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
    posix_spawnattr_setpgroup(&attributes, 0);
    posix_spawnattr_setsigmask(&attributes, &none);
    posix_spawnattr_setsigdefault(&attributes, &defaults);

    std::vector<char*> arguments;
    for (const std::string& argument : command) {
      arguments.push_back(const_cast<char*>(argument.c_str()));
    }
    arguments.push_back(nullptr);
    const int error =
        posix_spawnp(&pid_, arguments[0], &actions, &attributes, arguments.data(), environ);
    posix_spawn_file_actions_destroy(&actions);
    posix_spawnattr_destroy(&attributes);
    if (error != 0) refuse(command, error);
  }

  // Closes its input, waits, then kills the group. Returns how the child ended.
  ~Process() { end(kGoodbye); }
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  std::string end(Clock::duration patience) {
    if (ended_) return how_;
    to_child_.close();
    from_child_.close();
    const auto deadline = Clock::now() + patience;
    siginfo_t info{};
    const auto has_ended = [&] {
      info.si_pid = 0;
      return waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT) == 0 &&
             info.si_pid == pid_;
    };
    bool killed = false;
    while (!has_ended()) {
      if (Clock::now() >= deadline) {
        killed = true;
        break;
      }
      const timespec pause{0, 2'000'000};
      nanosleep(&pause, nullptr);
    }
    // The leader is not reaped yet, so its id cannot be another group's.
    kill(-pid_, SIGKILL);
    int status = 0;
    while (waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
    }
    ended_ = true;
    how_ = killed              ? "was killed"
           : WIFEXITED(status) ? fmt::format("exited with status {}", WEXITSTATUS(status))
                               : fmt::format("was ended by signal {}", WTERMSIG(status));
    return how_;
  }

  int input() const { return to_child_.get(); }
  int output() const { return from_child_.get(); }

 private:
  [[noreturn]] static void refuse(const std::vector<std::string>& command, int error) {
    fail(ErrorCode::kNotAvailable, "verifier 'command': cannot start '{}': {}", command[0],
         std::strerror(error));
  }

  FileDescriptor to_child_;
  FileDescriptor from_child_;
  pid_t pid_ = -1;
  bool ended_ = false;
  std::string how_;
};

class Command : public Verifier {
 public:
  explicit Command(const VerifierOptions& options) : options_(options) {
    if (options_.command.empty() || options_.command[0].empty()) {
      fail(ErrorCode::kNotAvailable,
           "verifier 'command': no command is configured (config key data.command)");
    }
  }

  void check(const Example&) const override {}

  double score(std::string_view response, const Example& example) override {
    try {
      if (!process_) {
        process_ = std::make_unique<Process>(options_.command, options_.command_dir);
        buffer_.clear();
      }
      const std::int64_t id = next_id_++;
      const json request = {{"id", id},
                            {"prompt", example.prompt},
                            {"response", std::string(response)},
                            {"answer", example.answer}};
      const std::string line = request.dump(-1, ' ', false, json::error_handler_t::replace) + "\n";
      return score_of(exchange(line), id);
    } catch (const Error& e) {
      process_.reset();
      throw Error(e.code(), fmt::format("{}: {}", example.source, e.what()));
    }
  }

 private:
  // Writes the request and reads one line; both at once, so that a grader that answers before it
  // has read everything cannot lock up with us.
  std::string exchange(std::string_view request) {
    const NoSigPipe guard;
    const auto deadline =
        Clock::now() + std::chrono::duration_cast<Clock::duration>(
                           std::chrono::duration<double>(options_.command_timeout_s));
    if (!buffer_.empty()) {
      fail(ErrorCode::kFormat, "verifier 'command': more than one line for a request: '{}'",
           shown(buffer_));
    }
    while (true) {
      const std::size_t newline = buffer_.find('\n');
      if (newline != std::string::npos && request.empty()) {
        std::string line = buffer_.substr(0, newline);
        buffer_.erase(0, newline + 1);
        return line;
      }
      if (buffer_.size() > kMaxLineBytes) {
        fail(ErrorCode::kFormat, "verifier 'command': an answer longer than {} bytes: '{}'",
             kMaxLineBytes, shown(buffer_));
      }
      wait(!request.empty(), deadline);
      send(request);
      receive();
    }
  }

  void wait(bool to_write, Clock::time_point deadline) {
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
    pollfd fds[2] = {{process_->output(), POLLIN, 0},
                     {to_write ? process_->input() : -1, POLLOUT, 0}};
    const int ready = left > 0 ? poll(fds, 2, static_cast<int>(left)) : 0;
    if (ready < 0 && errno != EINTR) {
      fail(ErrorCode::kIo, "verifier 'command': poll: {}", std::strerror(errno));
    }
    if (left <= 0 || (ready == 0 && Clock::now() >= deadline)) {
      process_->end(Clock::duration::zero());
      fail(ErrorCode::kIo, "verifier 'command': '{}' gave no answer within {} s",
           options_.command[0], options_.command_timeout_s);
    }
  }

  void send(std::string_view& request) {
    if (request.empty()) return;
    const ssize_t count = write(process_->input(), request.data(), request.size());
    if (count > 0) {
      request.remove_prefix(static_cast<std::size_t>(count));
    } else if (count < 0 && errno == EPIPE) {
      ended_early();
    } else if (count < 0 && errno != EAGAIN && errno != EINTR) {
      fail(ErrorCode::kIo, "verifier 'command': write: {}", std::strerror(errno));
    }
  }

  void receive() {
    char bytes[4096];
    const ssize_t count = read(process_->output(), bytes, sizeof bytes);
    if (count > 0) {
      buffer_.append(bytes, static_cast<std::size_t>(count));
    } else if (count == 0) {
      ended_early();
    } else if (errno != EAGAIN && errno != EINTR) {
      fail(ErrorCode::kIo, "verifier 'command': read: {}", std::strerror(errno));
    }
  }

  [[noreturn]] void ended_early() {
    const std::string how = process_->end(kGoodbye);
    fail(ErrorCode::kIo, "verifier 'command': '{}' {} before it answered{}", options_.command[0],
         how, how == "exited with status 127" ? " (127: the program was not found)" : "");
  }

  static double score_of(const std::string& line, std::int64_t id) {
    const json answer = json::parse(line, nullptr, false);
    const auto refuse = [&](const std::string& why) {
      fail(ErrorCode::kFormat,
           "verifier 'command': {} in its answer '{}'; expected "
           "{{\"id\": {}, \"score\": 0 to 1}}",
           why, shown(line), id);
    };
    if (!answer.is_object()) refuse("no JSON object");
    if (!answer.contains("id") || answer["id"] != id) refuse("no or another id");
    if (!answer.contains("score") || !answer["score"].is_number()) refuse("no number as score");
    const double score = answer["score"].get<double>();
    if (!(score >= 0 && score <= 1)) refuse("a score outside [0, 1]");
    return score;
  }

  static std::string shown(std::string_view text) {
    return text.size() <= 200 ? std::string(text) : std::string(text.substr(0, 197)) + "...";
  }

  VerifierOptions options_;
  std::unique_ptr<Process> process_;
  std::string buffer_;
  std::int64_t next_id_ = 0;
};

}  // namespace

std::unique_ptr<Verifier> command_verifier(const VerifierOptions& options) {
  return std::make_unique<Command>(options);
}

}  // namespace rlk
